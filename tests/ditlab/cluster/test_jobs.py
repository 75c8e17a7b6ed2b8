"""Jobs on real nodes that have no DiTLab: the README's line, `ditlab submit`, a stop, access
without the token.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ditlab.checkpoints.store import CheckpointStore
from ditlab.home import Home
from ditlab.tracking.history import JournalFacts
from ditlab.tracking.journal import read_content
from ditlab.tracking.records import list_runs
from support.clusters.lab import Lab, lab
from support.clusters.nodes import CHECKOUT, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a cluster of its own: 75 s
SHORT = [
    "--set",
    "training.steps=40",
    "--set",
    "schedule.warmup=10",
    "--set",
    "evaluation.samples=4",
]
STEPS = 200
RESOURCES = ["--set", "resources.workers=2"]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A head that only leads, and a node of one core."""
    with lab(tmp_path_factory.mktemp("lab")) as found:
        found.nodes.start_head(num_cpus=0)
        found.nodes.add_node(1)
        yield found


@pytest.fixture(scope="module")
def two_nodes(here: Lab) -> None:
    """A second node, for runs that begin."""
    here.nodes.add_node(1)


def readme_line(here: Lab, home: Path) -> list[str]:
    """The README's `ray job submit` line, with its placeholders filled in: bucket, home, the
    tunnel's port.
    """
    text = (CHECKOUT / "README.md").read_text()
    found = re.search(r"^ray job submit (?:.*\\\n)*.*$", text, re.MULTILINE)
    assert found
    line = found.group().replace("s3://BUCKET/checkpoints", shlex.quote(here.storage))
    line = line.replace("/shared/runs", shlex.quote(str(home)))
    words = shlex.split(line.replace("\\\n", " ").replace("http://127.0.0.1:8265", here.nodes.jobs))
    assert (
        words[:3] == ["ray", "job", "submit"]
        and here.nodes.jobs in words
        and here.storage in words[-1]
    )
    return [sys.executable, "-m", "ray.scripts.scripts", *words[1:]]


def submit(
    here: Lab, *arguments: str, cwd: Path = CHECKOUT, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ditlab", "submit", *arguments]
    return subprocess.run(
        command,
        env={**here.client, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.fixture(scope="module")
def mistaken(here: Lab) -> subprocess.CompletedProcess[str]:
    """A job whose run is refused on the cluster."""
    return submit(
        here, "experiments/digits/dit.yaml", *RESOURCES, "--set", "resources.cpus_per_worker=9"
    )


def test_the_line_of_the_readme_trains_on_two_nodes(here, two_nodes):
    home = here.home.with_name("given")  # the nodes' own environment names another
    home.mkdir()
    done = subprocess.run(
        [*readme_line(here, home), *SHORT],
        env=here.client,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [record] = [record for record in list_runs(Home(home)) if record.name == "digits-dit"]
    assert (record.status, record.step) == ("finished", 40)
    run = here.mlflow.run(record.run_id)
    facts = JournalFacts()
    for event in read_content(Home(home).run(record.run_id).journal).events:
        facts.add(event)
    tags = facts.tags
    assert run["info"]["status"] == "FINISHED" and tags["ditlab.workers"] == "2"
    assert len(set(tags["ditlab.nodes"].split(", "))) == 2, tags["ditlab.nodes"]
    assert here.mlflow.steps(run["info"]["run_id"], "train/loss") == list(range(1, 41))
    assert any(file["path"] == "spec.yaml" for file in artifacts(here, run["info"]["run_id"]))
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    store = CheckpointStore.at(here.storage).child(record.run_id)
    with store.open(store.steps()[-1]) as reader:
        assert reader.manifest.step == 40 and len(reader.manifest.shards) == 2


def artifacts(here, run):
    return here.mlflow.ask(f"artifacts/list?run_id={run}")["files"]


def test_nothing_secret_leaves_the_nodes(here, mistaken):
    """After a job: answers of the job server, files of MLflow and DITLAB_HOME, Ray's logs on every
    node.
    """
    assert mistaken.returncode == 2, mistaken.stderr
    secrets = [here.nodes.token, here.mlflow.password]
    shown = json.dumps([here.nodes.get("/api/jobs/"), here.nodes.get("/api/v0/actors?detail=true")])
    assert "experiments/digits/dit.yaml" in shown and len(shown) > 2000
    places = [here.home, here.nodes.folder, here.mlflow_home, *here.nodes.session_logs()]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert len(files) > 50
    for secret in secrets:
        assert secret not in shown
        # MLflow keeps a hash of the password, and Ray no word of the token.
        found = [path for path in files if secret.encode() in path.read_bytes()]
        assert not found, found


@pytest.mark.parametrize(("token", "code"), [(None, 401), ("f" * 32, 403)])
def test_the_job_server_refuses_strangers(here, token, code):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    job = json.dumps({"entrypoint": "touch /tmp/never"}).encode()
    for path, data in (
        ("/api/version", None),
        ("/api/jobs/", None),
        ("/api/jobs/", job),
        ("/api/v0/nodes", None),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(
                urllib.request.Request(here.nodes.jobs + path, data, headers), timeout=10
            )
        assert refused.value.code == code, path


def test_mlflow_refuses_strangers(here):
    path, server = "/api/2.0/mlflow/experiments/search?max_results=1", here.mlflow
    assert server.status(path, None) == 401
    assert server.status(path, server.user, "wrong password") == 401
    assert server.status(path, server.user, server.password) == 200


def test_a_stopped_job_saves_and_the_same_submit_goes_on(here, two_nodes):
    spec = ["experiments/digits/dit.yaml", "--resume", "auto", *RESOURCES]
    spec += [
        "--set",
        "name=stopped",
        "--set",
        f"checkpoint.storage={here.storage}",
        "--set",
        "evaluation.samples=4",
    ]
    spec += ["--set", f"training.steps={STEPS}"]
    long = submit(here, *spec, "--no-wait", "--json")
    assert long.returncode == 0, long.stderr
    job, home = json.loads(long.stdout.splitlines()[-1])["job"], Home(here.home)
    wait_for(lambda: journal_step(here, "stopped") > 5, 200, "the first steps")
    stop = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "job",
        "stop",
        job,
        "--address",
        here.nodes.jobs,
    ]
    stopped = subprocess.run(
        stop, env=here.client, capture_output=True, text=True, timeout=200, check=False
    )
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    wait_for(lambda: here.nodes.get(f"/api/jobs/{job}")["status"] == "STOPPED", 60, "the job's end")
    [record] = [record for record in list_runs(home) if record.name == "stopped"]
    assert record.status == "interrupted" and record.step > 5, record
    assert CheckpointStore.at(here.storage).child(record.run_id).last_step() == record.step
    first = here.mlflow.run(record.run_id)["info"]["run_id"]
    assert record.step < STEPS
    again = submit(here, *spec, "--json")
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout.splitlines()[-1])
    assert (result["run_id"], result["status"], result["step"]) == (
        record.run_id,
        "finished",
        STEPS,
    )
    assert result["job_status"] == "SUCCEEDED"
    run = here.mlflow.run(record.run_id)
    assert run["info"]["run_id"] == first and run["info"]["status"] == "FINISHED"
    assert here.mlflow.steps(first, "train/loss") == list(range(1, STEPS + 1))


def journal_step(here, name):
    """The last step that a run of this name has logged."""
    found = 0
    for record in list_runs(Home(here.home)):
        journal = Home(here.home).run(record.run_id).journal
        if record.name == name and journal.exists():
            steps = re.findall(rb'"step": ?(\d+)', journal.read_bytes())
            found = max([found, *map(int, steps)])
    return found


def homes_in_rays_copies(here: Lab) -> list[Path]:
    sessions = [logs.parent for logs in here.nodes.session_logs()]
    return [
        home
        for session in sessions
        for home in session.glob("runtime_resources/working_dir_files/*/runs")
    ]


def test_a_job_without_a_home_is_refused(here):
    """As on a cluster whose nodes' environment names none."""
    words = ["job", "submit", "--address", here.nodes.jobs, "--working-dir", ".", "--runtime-env"]
    words += [
        "platform/runtime_env.yaml",
        "--",
        "env",
        "-u",
        "DITLAB_HOME",
        "python",
        "-m",
        "ditlab",
        "train",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", *words, "experiments/digits/dit.yaml"],
        env=here.client,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode and "(the default, as DITLAB_HOME is not set) lies in Ray's copy" in said
    assert homes_in_rays_copies(here) == []


def test_the_home_and_the_options_of_a_job_are_those_of_its_submit(here, two_nodes, tmp_path):
    """From a folder that is no checkout, and into a home that the nodes' environment does not
    name.
    """
    home = tmp_path / "job's home"
    (tmp_path / "mine.yaml").write_text((CHECKOUT / "experiments/digits/dit.yaml").read_text())
    done = submit(here, "mine.yaml", "--home", str(home), "--quick", "--no-figures", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [record] = list_runs(Home(home))
    assert (record.name, record.status) == ("digits-dit-quick", "finished")
    assert (
        f"""DITLAB_HOME={shlex.quote(str(home))} ditlab sample {record.run_id}"""
        in done.stdout + done.stderr
    )
    assert homes_in_rays_copies(here) == []


def test_a_mistake_in_the_cluster_is_the_exit_code_of_submit(mistaken):
    assert mistaken.returncode == 2, mistaken.stderr
    assert "resources.workers=2 at 9 CPUs each do not fit" in mistaken.stdout + mistaken.stderr
    assert "Traceback" not in mistaken.stdout + mistaken.stderr


REFUSALS = """
import contextlib, io, json, os, sys
from ditlab.cli.main import main
from ditlab.cluster.access import cluster_token
from ditlab.cluster.ray_internals import reload_token
from ditlab.errors import UserError

address, cases = sys.argv[1], json.loads(sys.argv[2])
found = []
for environment, arguments in cases:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    reload_token()
    sys.argv = ["ditlab", *arguments]
    said, code, refusal = io.StringIO(), 0, ""
    with contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code
    try:
        with cluster_token(address):
            pass
    except UserError as error:
        refusal = str(error)
    found.append([code, said.getvalue(), refusal])
print(json.dumps(found))
"""
"""For each environment and command line: exit code and standard error, and the cluster's own
refusal. In a process of its own, as a Ray session of this one would lose its token."""


def test_a_wrong_token_none_and_another_server_are_one_sentence_each(here, tmp_path):
    """Nothing is begun: neither a job nor a run in a home."""
    home, path, token, spec = (
        tmp_path / "home",
        str(tmp_path / "none"),
        here.nodes.token,
        "experiments/digits/dit.yaml",
    )
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 32}
    submit = ["submit", spec, "--address", here.nodes.jobs]
    cases = [
        (wrong, submit, "refuses this token"),
        (wrong, ["train", spec, "--address", here.nodes.address], "refuses this token"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ""}, submit, "requires a token"),
        ({"RAY_AUTH_TOKEN_PATH": path}, submit, f"RAY_AUTH_TOKEN_PATH={path} cannot be read"),
        (
            {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": token},
            submit,
            "RAY_AUTH_MODE=disabled holds it back",
        ),
        (
            {"RAY_AUTH_TOKEN": token},
            ["submit", spec, "--address", here.mlflow.url],
            "no job server of Ray answers",
        ),
    ]
    before = len(here.nodes.get("/api/jobs/"))
    arguments = [here.nodes.address, json.dumps([case[:2] for case in cases])]
    done = subprocess.run(
        [sys.executable, "-c", REFUSALS, *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=200,
        env=here.client
        | {"HOME": str(tmp_path), "DITLAB_HOME": str(home), "DITLAB_PROGRESS_SECONDS": "0"},
        check=True,
    )
    answers = json.loads(done.stdout.splitlines()[-1])
    for (_, command, words), (code, err, refusal) in zip(cases, answers, strict=True):
        assert code == 2 and words in err, (command, err)
        assert words in refusal or here.mlflow.url in command, refusal
        assert len(err.strip().splitlines()) == 1 and "f" * 32 not in err + refusal
    assert not home.exists() and len(here.nodes.get("/api/jobs/")) == before
