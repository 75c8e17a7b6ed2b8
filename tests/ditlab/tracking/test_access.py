"""An MLflow server with accounts: requests without one are refused, and a run whose requests are loses no point."""

import json
import signal
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import mlflow
import pytest
from click.testing import CliRunner

from ditlab.cli.runs.commands import runs
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.runs.prepare import check_launch, startup_lines
from ditlab.spec.files import load_experiment
from ditlab.tracking.access import check_access
from ditlab.tracking.tracker import RunTracker
from support.clusters.nodes import free_ports
from support.command import run_process
from support.databases import seed
from support.object_store.s3 import S3Server, s3_at_hand
from support.served import NAME, PASSWORD, Served, account, served

pytestmark = pytest.mark.slow  # a server of its own with accounts: 30 s

NewRun = Callable[..., RunFolder]
LOGIN = f"{NAME}:{PASSWORD}"
WRONG = "wrong-horse-battery"
API = "/api/2.0/mlflow/experiments/search?max_results=1"
ARTIFACT = "/api/2.0/mlflow-artifacts/artifacts/0/some-run/artifacts/note.txt"
AS_JSON = {"Content_Type": "application/json"}
SMALL = """\
name: small
model: {family: dit, image_size: 8, patch_size: 4, width: 32, depth: 1, num_heads: 2}
batch: {size: 32}
training: {steps: 4}
"""


@dataclass(frozen=True)
class Closed:
    """A server with accounts, a database of its own, and artifacts in object storage, which Ctrl-C ends."""

    server: Served
    root: Path
    """Its DITLAB_HOME."""
    database: Path
    s3: S3Server

    def notes(self) -> dict[str, bytes]:
        """Contents of the objects that hold a note, by key."""
        client = boto3.client("s3", endpoint_url=f"http://{self.s3.endpoint}")
        keys = [found["Key"] for found in client.list_objects_v2(Bucket="kept").get("Contents", [])]
        return {
            key: client.get_object(Bucket="kept", Key=key)["Body"].read() for key in keys if key.endswith("note.txt")
        }


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path) -> Iterator[Closed]:
    root = tmp_path_factory.mktemp("closed")
    database = seed(root / "far", mlflow_template) / "mlflow.db"
    options = ("--auth", "--allowed-hosts", "mlflow.lab,other.lab:7000", "--allowed-hosts", "10.1.2.3")
    with s3_at_hand("kept") as s3:
        environment = {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{database}",
                       "MLFLOW_S3_ENDPOINT_URL": f"http://{s3.endpoint}"}  # fmt: skip
        home = root / "home"
        options += ("--artifacts", "s3://kept/artifacts")
        with served(home, *options, end=signal.SIGINT, **account(), **environment) as server:
            assert server.ask(ARTIFACT, LOGIN, b"a note", "PUT")[0] == 200
            yield Closed(server, home, database, s3)


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This process has no account, and none in a file of MLflow's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in account():
        monkeypatch.delenv(name, raising=False)


def log_in(monkeypatch: pytest.MonkeyPatch, password: str = PASSWORD) -> None:
    for name, value in account(password).items():
        monkeypatch.setenv(name, value)


def test_pages_runs_and_artifacts_need_the_right_password(closed: Closed) -> None:
    server = closed.server
    wrong = f"{NAME}:{WRONG}"
    pages = ("/", ARTIFACT, "/version", "/ajax-api/2.0/mlflow/experiments/search", "/signup")
    refused = [(page, None) for page in pages]
    refused += [(API, login) for login in (None, wrong, f"{NAME}:", f"bob:{PASSWORD}", "admin:password1234")]
    for page, login in [*refused, ("/", wrong), (ARTIFACT, wrong)]:
        assert server.status(page, login) == 401, (page, login)
    assert b"<title>MLflow</title>" in server.ask("/", LOGIN)[1]
    assert "experiments" in json.loads(server.ask(API, LOGIN)[1])
    assert server.status("/health") == 200


def test_artifacts_go_to_object_storage_through_the_server(closed: Closed) -> None:
    """Clients need no keys to the storage, but a password: without one they change nothing there."""
    assert closed.server.ask(ARTIFACT, LOGIN) == (200, b"a note")
    for method in ("PUT", "DELETE"):
        assert closed.server.ask(ARTIFACT, None, b"changed", method)[0] == 401
    assert closed.server.ask(ARTIFACT, LOGIN)[1] == b"a note"
    assert closed.notes()["artifacts/0/some-run/artifacts/note.txt"] == b"a note"
    assert not (closed.root / "artifacts").exists()


def test_the_database_is_the_one_of_the_variable(closed: Closed) -> None:
    """Its address, which may hold a password, is in no command line."""
    made = closed.server.ask("/api/2.0/mlflow/experiments/create", LOGIN, b'{"name": "far"}', "POST", **AS_JSON)
    found = closed.server.ask(
        f"/api/2.0/mlflow/experiments/get?experiment_id={json.loads(made[1])['experiment_id']}", LOGIN
    )
    assert json.loads(found[1])["experiment"]["artifact_location"].startswith("mlflow-artifacts:/")
    client = mlflow.MlflowClient(f"sqlite:///{closed.database}")
    assert client.get_experiment_by_name("far") is not None
    assert not Home(closed.root).mlflow_database.exists()
    assert str(closed.database) not in closed.server.command_lines()


def test_accounts_are_made_by_the_administrator_read_all_and_write_their_own(closed: Closed) -> None:
    server = closed.server
    create, reviewer = "/api/2.0/mlflow/users/create", "eve:an-account-of-eves"
    content = json.dumps({"username": "eve", "password": "an-account-of-eves"}).encode()
    assert server.ask(create, None, content, "POST", **AS_JSON)[0] == 401
    assert server.ask(create, LOGIN, content, "POST", **AS_JSON)[0] == 200
    experiments = "/api/2.0/mlflow/experiments/create"
    own = server.ask(experiments, LOGIN, b'{"name": "of-ann"}', "POST", **AS_JSON)
    identity = json.loads(own[1])["experiment_id"]
    assert server.status(f"/api/2.0/mlflow/experiments/get?experiment_id={identity}", reviewer) == 200
    delete = json.dumps({"experiment_id": identity}).encode()
    assert server.ask("/api/2.0/mlflow/experiments/delete", reviewer, delete, "POST", **AS_JSON)[0] == 403
    assert server.ask(experiments, reviewer, b'{"name": "of-eve"}', "POST", **AS_JSON)[0] == 200
    other = json.dumps({"username": "mal", "password": "an-account-of-mals"}).encode()
    assert server.ask(create, reviewer, other, "POST", **AS_JSON)[0] == 403


def test_only_requests_to_allowed_hosts_are_answered(closed: Closed) -> None:
    refused = ("evil.example", "evil.example:5000", "mlflow.lab.evil.example", "10.1.2.30:5000", "192.168.1.9",
               "other.lab:7001", "localhost.evil.example:80")  # fmt: skip
    answered = ("mlflow.lab", "mlflow.lab:5000", "other.lab:7000", "10.1.2.3:1", "localhost:9999", "[::1]:9999",
                "127.0.0.1")  # fmt: skip
    assert {host: closed.server.status(API, Host=host) for host in refused} == dict.fromkeys(refused, 403)
    assert {host: closed.server.status(API, Host=host) for host in answered} == dict.fromkeys(answered, 401)
    assert closed.server.status(API, LOGIN, Host=refused[0]) == 403
    assert closed.server.status(API, LOGIN, Host=answered[0]) == 200


def test_another_sites_page_changes_nothing(closed: Closed) -> None:
    headers = {"Origin": "https://evil.example", **AS_JSON}
    create = "/ajax-api/2.0/mlflow/experiments/create"
    assert closed.server.ask(create, LOGIN, b'{"name": "forged"}', "POST", **headers)[0] == 403


def test_its_files_are_the_users_alone_and_hold_no_password(closed: Closed) -> None:
    home = Home(closed.root)
    for path in (home.mlflow_users, home.mlflow_access, home.mlflow_key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert PASSWORD not in closed.server.command_lines()
    for path in closed.root.parent.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


@pytest.mark.timeout(200)
def test_a_second_start_keeps_accounts_and_key_and_refuses_another_password(tmp_path: Path) -> None:
    with served(tmp_path, "--auth", **account()):
        key = Home(tmp_path).mlflow_key.read_text()
    log = tmp_path.with_name("other.log")
    said = run_process(
        "ui", "--auth", "--port", str(free_ports(1)[0]), "--json", home=tmp_path, **account("another-horse-battery")
    )
    assert said.code == 2 and "MLFLOW_TRACKING_PASSWORD is not the one that" in said.err
    assert "another-horse" not in said.err + said.out
    with served(tmp_path, "--auth", log=log, **account()) as server:
        assert server.status(API, LOGIN) == 200
    assert Home(tmp_path).mlflow_key.read_text() == key and len(key) == 64


def test_a_refusal_says_what_to_set(closed: Closed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url, remedy = closed.server.url, "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    without = check_access(url) or ""
    assert without.startswith(f"MLflow at {url} wants a name and password (401)") and remedy in without
    log_in(monkeypatch, WRONG)
    refused = check_access(url) or ""
    assert "refuses the name or password (401)" in refused and remedy in refused and WRONG not in refused
    log_in(monkeypatch)
    assert check_access(url) is None
    assert check_access("http://127.0.0.1:9", 1) is None
    assert check_access(f"sqlite:///{tmp_path}/mlflow.db") is None


def test_an_account_in_mlflows_file_is_found(closed: Closed, tmp_path: Path) -> None:
    (tmp_path / ".mlflow").mkdir()
    text = f"[mlflow]\nmlflow_tracking_username = ann\nmlflow_tracking_password = {PASSWORD}\n"
    (tmp_path / ".mlflow" / "credentials").write_text(text)
    assert check_access(closed.server.url) is None


def test_a_run_warns_of_a_refusal_before_it_trains(
    closed: Closed, home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", closed.server.url)
    launch = check_launch(load_experiment(tmp_path / "small.yaml"), None, local=True, remote=False)
    (warning,) = [line for line in startup_lines(launch) if line.startswith("warning")]
    assert f"MLflow at {closed.server.url} wants a name and password (401)" in warning
    assert warning.endswith("training goes on, `ditlab runs sync` sends what is missing.")
    log_in(monkeypatch)
    assert not [line for line in startup_lines(launch) if line.startswith("warning")]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("password", [None, WRONG])
def test_a_refused_run_goes_on_and_is_sent_later(
    closed: Closed, home: Home, new_run: NewRun, monkeypatch: pytest.MonkeyPatch, password: str | None
) -> None:
    if password:
        log_in(monkeypatch, password)
    url, warnings = closed.server.url, list[str]()
    folder = new_run(f"refused-{password}", tracking_uri=url)
    tracker = RunTracker(folder, url, home, warn=warnings.append)
    tracker.start(f"refused-{password}", "refused", "dit", {"depth": "9"})
    for step in range(1, 51):
        tracker.journal.log_metrics(step, {"train/loss": 1 / step})
    tracker.log_text("a note", "note.txt")
    tracker.end("finished")
    left = tracker.close(10)
    assert left > 50
    (warning,) = warnings
    assert url in warning and "(401)" in warning and "MLFLOW_TRACKING_USERNAME" in warning
    assert "training goes on" in warning and WRONG not in warning
    with pytest.raises(UserError, match=r"\(401\); set MLFLOW_TRACKING_USERNAME .*, and give the command again\."):
        CliRunner().invoke(runs, ["sync"], catch_exceptions=False)
    log_in(monkeypatch)
    CliRunner().invoke(runs, ["sync"], catch_exceptions=False)
    client = mlflow.MlflowClient(url)
    experiment = client.get_experiment_by_name("refused")
    (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = 'refused-{password}'")
    points = client.get_metric_history(run.info.run_id, "train/loss")
    assert [point.step for point in points] == list(range(1, 51)) and run.info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["note.txt"]


def test_a_refused_list_of_runs_is_one_sentence(closed: Closed, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = ["--tracking", closed.server.url]
    with pytest.raises(UserError, match="wants a name and password"):
        CliRunner().invoke(runs, listing, catch_exceptions=False)
    log_in(monkeypatch, WRONG)
    with pytest.raises(UserError, match="refuses the name or password"):
        CliRunner().invoke(runs, listing, catch_exceptions=False)
    log_in(monkeypatch)
    assert CliRunner().invoke(runs, listing, catch_exceptions=False).exit_code == 0
