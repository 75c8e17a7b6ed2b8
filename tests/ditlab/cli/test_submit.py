"""Refusals of `ditlab submit` before anything is sent. Jobs themselves:
tests/ditlab/cluster/test_jobs.py.
"""

import contextlib
import json
import shlex
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from ditlab.cli.sweeps.commands import tune
from ditlab.cli.train.commands import submit, train
from ditlab.cluster import jobs
from ditlab.cluster.jobs import open_job_server, runtime_env
from support.clusters.nodes import CHECKOUT
from support.clusters.ray_jobs import package_files
from support.damage import refused

SPEC = CHECKOUT / "experiments" / "digits" / "dit.yaml"


OF_THE_JOB_SERVER = {"address", "working_dir", "home", "no_wait"}
LOCAL = {
    "address": "a job trains on the cluster that it is a job of",
    "local": "so it does not train without Ray",
    "dry_run": "what a job would do is asked where the spec lies",
}
"""Options of `train` and `tune` that no job takes, and why."""


NOBODY = "http://127.0.0.1:9"
"""An address where nothing answers."""


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch):
    monkeypatch.chdir(CHECKOUT)


def test_an_address_of_another_kind_or_where_nothing_answers(ditlab):
    for address, words in (
        ("127.0.0.1:6379", " is no address of a job server; write http://HOST:PORT"),
        ("http://", " is no address of a job server; write http://HOST:PORT"),
        (NOBODY, ": no job server of Ray answers there (Connection"),
    ):
        said = ditlab("submit", SPEC, "--address", address)
        said.refused(f"--address {address}{words}")


def test_the_address_that_is_given_wins_over_those_of_the_environment(monkeypatch):
    """Ray's client alone would send the job to the server that the environment names."""
    asked = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.server.server_port)
            self.send_error(404)

        def log_message(self, *_):
            pass

    with ExitStack() as stack:
        ports = []
        for _ in range(2):
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Answers))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            ports.append(server.server_port)
        given, other = ports
        for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{other}")
        with refused(f"127.0.0.1:{given}: no job server of Ray answers there"):
            stack.enter_context(open_job_server(f"http://127.0.0.1:{given}"))
    assert set(asked) == {given}


def test_train_names_submit_for_a_job_servers_address(ditlab):
    ditlab("train", SPEC, "--address", NOBODY).refused(f"`ditlab submit SPEC --address {NOBODY}`")


def test_a_spec_that_would_not_travel(ditlab, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "parent.yaml").write_text(SPEC.read_text())
    child = inside / "child.yaml"
    child.write_text("extends: ../parent.yaml\n")
    for spec, folder, words in (
        (SPEC, tmp_path, f"{SPEC} does not lie below --working-dir {tmp_path}"),
        (child, inside, "parent.yaml does not lie below"),
        (SPEC, tmp_path / "nowhere", "is no folder"),
    ):
        ditlab("submit", spec, "--working-dir", folder).refused(words)


def test_a_mistake_in_the_spec_is_found_before_the_upload(ditlab):
    said = ditlab("submit", SPEC, "--set", "model.dpeth=6", "--address", NOBODY)
    said.refused("did you mean 'depth'?")


def test_the_package_of_a_checkout_is_small_and_holds_its_code():
    files = package_files(CHECKOUT)
    assert sum((CHECKOUT / name).stat().st_size for name in files) < 8 * 2**20
    for needed in (
        "platform/ditlab/__main__.py",
        "models/ditlab_models/contract.py",
        "experiments/digits/dit.yaml",
    ):
        assert needed in files
    left_out = ("tests/", "docs/", ".git/", ".venv/", "runs/")
    assert not [name for name in files if name.startswith(left_out)]
    assert runtime_env(CHECKOUT)["env_vars"]["PYTHONPATH"] == "platform:models"


def test_from_another_folder_the_code_travels_beside_it(tmp_path):
    environment = runtime_env(tmp_path)
    assert (
        environment["working_dir"] == str(tmp_path) and "PYTHONPATH" not in environment["env_vars"]
    )
    packages = ("platform/ditlab", "models/ditlab_models", "platform/ditlab_addons")
    assert environment["py_modules"] == [str(CHECKOUT / package) for package in packages]


def test_the_file_for_ray_job_submit_says_the_same():
    from ditlab.spec.yaml_text import parse_yaml

    written = parse_yaml(
        (CHECKOUT / "platform" / "runtime_env.yaml").read_text(), "runtime_env.yaml"
    )
    assert written["env_vars"] == runtime_env(CHECKOUT)["env_vars"]


def test_every_page_has_the_same_line():
    lines = (CHECKOUT / "README.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("ray job submit "))
    assert "\n".join(lines[first : first + 3]) in (CHECKOUT / "docs" / "cluster.md").read_text()


def test_each_option_of_train_and_tune_is_passed_on_or_local():
    own = {each.name: each.opts for each in submit.params}
    for command in (train, tune):
        for each in command.params[1:]:  # the first is the file
            assert each.name in LOCAL or own.get(each.name) == each.opts, (
                f"{command.name} {each.opts[0]}"
            )
    assert (
        not own.keys() - {each.name for each in (*train.params, *tune.params)} - OF_THE_JOB_SERVER
    )


@pytest.fixture
def sent(monkeypatch):
    """(command, runtime environment) of each job that was submitted."""
    found = []

    def submit_job(name, command, environment):
        found.append((command, environment))
        return f"{name}-1"

    @contextlib.contextmanager
    def open_job_server(address):
        yield SimpleNamespace(address=address, submit=submit_job)

    monkeypatch.setattr(jobs, "open_job_server", open_job_server)
    return found


def test_a_job_has_the_options_of_train(sent, ditlab, monkeypatch, home):
    monkeypatch.setenv("DITLAB_FIGURES", "off")  # of this shell: the nodes have their own
    options = shlex.split(
        "--set training.steps=40 --resume auto --quick --seeds 2 --no-figures --prove --grace 900 --json"
    )
    done = ditlab("submit", SPEC, "--no-wait", *options).ok()
    assert done.json["job"] == "digits-dit-quick-1"
    [(command, environment)] = sent
    train.make_context("train", command[4:])  # raises for what it does not take
    assert command[:5] == ["python", "-m", "ditlab", "train", "experiments/digits/dit.yaml"]
    assert {*command[5:]} == {*options, "900.0"} - {"900"} and len(command[5:]) == len(options)
    assert environment["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"] == "910"
    assert json.loads(environment["env_vars"][jobs.SUBMITTER])["home"] == str(home)
    ditlab("submit", SPEC, "--no-wait")
    assert sent[1][0] == command[:5]


def test_the_home_of_a_job_is_the_one_that_is_named(sent, ditlab):
    done = ditlab("submit", SPEC, "--no-wait", "--home", "/shared/home").ok()
    assert "home: /shared/home\n" in done.err
    variables = sent[0][1]["env_vars"]
    assert variables["DITLAB_HOME"] == "/shared/home" and jobs.SUBMITTER not in variables
    ditlab("submit", SPEC, "--home", "runs").refused("--home runs is no absolute path")


@pytest.mark.parametrize("option", ["--seeds 3", "--no-figures", "--prove"])
def test_an_option_that_tune_lacks_is_refused_before_the_upload(ditlab, option):
    sweep = "experiments/digits/sweep_schedule.yaml"
    words = option.split()
    said = ditlab("submit", sweep, *words)
    said.refused(f"{words[0]} is for experiments, and `ditlab tune` runs {sweep}")
