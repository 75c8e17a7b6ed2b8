"""Jobs on nodes where DiTLab is installed from its wheel, submitted by somebody who has installed
it, too.
"""

import json
import shutil
import subprocess
import sys
import zipfile

import pytest

from ditlab.home import Home
from ditlab.tracking.records import list_runs
from support.clusters.lab import lab
from support.clusters.nodes import CHECKOUT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CHANGES = [
    "--set",
    "training.steps=20",
    "--set",
    "schedule.warmup=5",
    "--set",
    "resources.workers=2",
]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True, timeout=120)
    with lab(folder) as found:
        [wheel] = (folder / "dist").glob("*.whl")
        [packages] = (folder / "python" / "lib").glob("*/site-packages")
        zipfile.ZipFile(wheel).extractall(packages)
        found.nodes.start_head(num_cpus=0)
        found.nodes.add_node(1)
        found.nodes.add_node(1)
        yield found


def run(command, here, folder):
    """Standard output of a command of a person who may use the cluster."""
    options = {"capture_output": True, "text": True, "timeout": 600}
    done = subprocess.run(command, env=here.client, cwd=folder, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def submit(here, folder, *words):
    out = run([here.nodes.python, "-m", "ditlab", "submit", *words, "--json"], here, folder)
    return json.loads(out.splitlines()[-1])


def test_a_folder_with_a_spec_is_all_that_travels(here, tmp_path):
    shutil.copy(CHECKOUT / "experiments" / "digits" / "dit.yaml", tmp_path / "mine.yaml")
    command = ["python", "-m", "ditlab", "train", "mine.yaml", "--set", "name=by-ray", *CHANGES]
    job = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--working-dir", "."]
    run([*job, "--address", here.nodes.jobs, "--", *command], here, tmp_path)
    result = submit(here, tmp_path, "mine.yaml", "--set", "name=by-ditlab", *CHANGES)
    assert result["status"] == "finished"
    found = {record.name: (record.status, record.step) for record in list_runs(Home(here.home))}
    assert found == {"by-ray": ("finished", 20), "by-ditlab": ("finished", 20)}
    files = here.nodes.get("/api/jobs/")
    environments = [one["runtime_env"] for one in files if one["submission_id"]]
    assert len(environments) == 2 and not any("py_modules" in one for one in environments)


def test_a_sweep_is_submitted_as_one(here, tmp_path):
    shutil.copy(CHECKOUT / "experiments" / "digits" / "dit.yaml", tmp_path / "dit.yaml")
    (tmp_path / "sweep.yaml").write_text(
        "name: rates\nbase: dit.yaml\nfixed: {training.steps: 8, schedule.warmup: 2, "
        "evaluation.every: 4, evaluation.samples: 0}\nspace: {optimizer.lr: {kind: choice, "
        "values: [1.0e-4, 1.0e-3]}}\nsearch: {kind: grid}\nmetric: eval/velocity\nmode: "
        "min\ntrials: 2\nconcurrent: 2\n"
    )
    result = submit(here, tmp_path, "sweep.yaml", "--resume", "auto")
    assert [trial["status"] for trial in result["trials"]] == ["finished", "finished"]
    # it has ended: the same line begins another
    again = submit(here, tmp_path, "sweep.yaml", "--resume", "auto")
    assert again["run_id"] != result["run_id"]
