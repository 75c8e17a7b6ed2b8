"""Jobs on real nodes that have no DiTLab: the README's line, `ditlab submit`, access without the
token.
"""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from ditlab.checkpoints.store import CheckpointStore
from ditlab.home import Home
from ditlab.tracking.history import JournalFacts
from ditlab.tracking.journal import read_content
from ditlab.tracking.records import list_runs
from support.clusters.lab import lab
from support.clusters.nodes import CHECKOUT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a cluster of its own: 75 s
SPEC = "experiments/digits/dit.yaml"
SHORT = [
    "--set",
    "training.steps=40",
    "--set",
    "schedule.warmup=10",
    "--set",
    "evaluation.samples=4",
]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A head that only leads, and a node of one core."""
    with lab(tmp_path_factory.mktemp("lab")) as found:
        found.nodes.start_head(num_cpus=0)
        found.nodes.add_node(1)
        yield found


@pytest.fixture(scope="module")
def two_nodes(here):
    """A second node, for runs that begin."""
    here.nodes.add_node(1)


def readme_line(here, home):
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
    return ["ray.scripts.scripts", *words[1:]]


def python(here, *words, cwd=CHECKOUT):
    """Run a module, as a person who may use the cluster."""
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, env=here.client, cwd=cwd, capture_output=True, text=True, timeout=400
    )


@pytest.fixture(scope="module")
def mistaken(here):
    """A job whose run is refused on the cluster."""
    changes = ("--set", "resources.workers=2", "--set", "resources.cpus_per_worker=9")
    return python(here, "ditlab", "submit", SPEC, *changes)


def test_the_line_of_the_readme_trains_on_two_nodes(here, two_nodes):
    home = here.home.with_name("given")  # the nodes' own environment names another
    home.mkdir()
    done = python(here, *readme_line(here, home), *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    [record] = [record for record in list_runs(Home(home)) if record.name == "digits-dit"]
    assert (record.status, record.step) == ("finished", 40)
    run = here.mlflow.run(record.run_id)
    tags = JournalFacts.of(read_content(Home(home).run(record.run_id).journal)).tags
    assert run["info"]["status"] == "FINISHED" and tags["ditlab.workers"] == "2"
    assert len(set(tags["ditlab.nodes"].split(", "))) == 2, tags["ditlab.nodes"]
    assert here.mlflow.steps(run["info"]["run_id"], "train/loss") == list(range(1, 41))
    files = here.mlflow.ask(f"artifacts/list?run_id={run['info']['run_id']}")["files"]
    assert any(file["path"] == "spec.yaml" for file in files)
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    store = CheckpointStore.at(here.storage).child(record.run_id)
    with store.open(store.steps()[-1]) as reader:
        assert reader.manifest.step == 40 and len(reader.manifest.shards) == 2


def test_nothing_secret_leaves_the_nodes(here, mistaken):
    """After a job: answers of the job server, files of MLflow and DITLAB_HOME, Ray's logs on every
    node.
    """
    assert mistaken.returncode == 2, mistaken.stderr
    secrets = [here.nodes.token, here.mlflow.account["MLFLOW_TRACKING_PASSWORD"]]
    shown = json.dumps([here.nodes.get("/api/jobs/"), here.nodes.get("/api/v0/actors?detail=true")])
    assert SPEC in shown and len(shown) > 2000
    places = [here.home, here.nodes.folder, here.mlflow_home, *here.nodes.session_logs()]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert len(files) > 50
    for secret in secrets:
        assert secret not in shown
        # MLflow keeps a hash of the password, and Ray no word of the token.
        found = [path for path in files if secret.encode() in path.read_bytes()]
        assert not found, found


def homes_in_rays_copies(here):
    found = []
    for logs in here.nodes.session_logs():
        found += logs.parent.glob("runtime_resources/working_dir_files/*/runs")
    return found


def test_a_job_without_a_home_is_refused(here):
    """As on a cluster whose nodes' environment names none."""
    words = ["job", "submit", "--working-dir", ".", "--runtime-env", "platform/runtime_env.yaml"]
    words += [
        "--address",
        here.nodes.jobs,
        *["--", "env", "-u", "DITLAB_HOME", "python", "-m", "ditlab", "train"],
    ]
    done = python(here, "ray.scripts.scripts", *words, SPEC)
    said = done.stdout + done.stderr
    assert done.returncode and "(the default, as DITLAB_HOME is not set) lies in Ray's copy" in said
    assert homes_in_rays_copies(here) == []


def test_the_home_and_the_options_of_a_job_are_those_of_its_submit(here, two_nodes, tmp_path):
    """From a folder that is no checkout, and into a home that the nodes' environment does not
    name.
    """
    home = tmp_path / "job's home"
    (tmp_path / "mine.yaml").write_text((CHECKOUT / SPEC).read_text())
    words = ("submit", "mine.yaml", "--home", str(home), "--quick", "--no-figures")
    done = python(here, "ditlab", *words, cwd=tmp_path)
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
    home, path, token = tmp_path / "home", str(tmp_path / "none"), here.nodes.token
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 32}
    submit = ["submit", SPEC, "--address", here.nodes.jobs]
    cases = [
        (wrong, submit, "refuses this token"),
        (wrong, ["train", SPEC, "--address", here.nodes.address], "refuses this token"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ""}, submit, "requires a token"),
        ({"RAY_AUTH_TOKEN_PATH": path}, submit, f"RAY_AUTH_TOKEN_PATH={path} cannot be read"),
        (
            {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": token},
            submit,
            "RAY_AUTH_MODE=disabled holds it back",
        ),
        (
            {"RAY_AUTH_TOKEN": token},
            ["submit", SPEC, "--address", here.mlflow.url],
            "If it is no cluster of Ray, correct the address.",
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
