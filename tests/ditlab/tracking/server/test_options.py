"""`ditlab ui --auth`: who is let in, under which names, and what lies where afterwards."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ditlab.cli.ui import ui
from ditlab.errors import UserError
from ditlab.home import Home
from support.command import run_process
from support.nodes import free_ports
from support.s3 import s3_at_hand
from support.served import NAME, PASSWORD, Served, account, served

LOGIN = f"{NAME}:{PASSWORD}"
API = "/api/2.0/mlflow/experiments/search?max_results=1"
ARTIFACT = "/api/2.0/mlflow-artifacts/artifacts/0/some-run/artifacts/note.txt"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("doors")


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Served]:
    options = ("--auth", "--allowed-hosts", "mlflow.lab,other.lab:7000", "--allowed-hosts", "10.1.2.3")
    with served(root, *options, **account()) as server:
        assert server.ask(ARTIFACT, LOGIN, b"a note", "PUT")[0] == 200
        yield server


@pytest.mark.parametrize("page", ["/", API, ARTIFACT, "/version", "/ajax-api/2.0/mlflow/experiments/search", "/signup"])
def test_nobody_reads_without_the_right_password(server: Served, page: str) -> None:
    for login in (None, f"{NAME}:wrong-horse-battery", f"{NAME}:", f"bob:{PASSWORD}", "admin:password1234"):
        assert server.status(page, login) == 401, login


def test_the_administrator_reads_pages_runs_and_artifacts(server: Served) -> None:
    assert b"<title>MLflow</title>" in server.ask("/", LOGIN)[1]
    assert "experiments" in json.loads(server.ask(API, LOGIN)[1])
    assert server.ask(ARTIFACT, LOGIN) == (200, b"a note")
    assert server.status("/health") == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_nobody_changes_artifacts_without_a_password(server: Served, root: Path, method: str) -> None:
    assert server.ask(ARTIFACT, None, b"changed", method)[0] == 401
    assert server.ask(ARTIFACT, LOGIN)[1] == b"a note"
    assert [path.read_bytes() for path in (root / "artifacts").rglob("note.txt")] == [b"a note"]


def test_accounts_are_made_by_the_administrator_read_all_and_write_their_own(server: Served) -> None:
    create, reviewer = "/api/2.0/mlflow/users/create", "eve:an-account-of-eves"
    content = json.dumps({"username": "eve", "password": "an-account-of-eves"}).encode()
    as_json = {"Content_Type": "application/json"}
    assert server.ask(create, None, content, "POST", **as_json)[0] == 401
    assert server.ask(create, LOGIN, content, "POST", **as_json)[0] == 200
    experiments = "/api/2.0/mlflow/experiments/create"
    own = server.ask(experiments, LOGIN, b'{"name": "of-ann"}', "POST", **as_json)
    identity = json.loads(own[1])["experiment_id"]
    assert server.status(f"/api/2.0/mlflow/experiments/get?experiment_id={identity}", reviewer) == 200
    delete = json.dumps({"experiment_id": identity}).encode()
    assert server.ask("/api/2.0/mlflow/experiments/delete", reviewer, delete, "POST", **as_json)[0] == 403
    assert server.ask(experiments, reviewer, b'{"name": "of-eve"}', "POST", **as_json)[0] == 200
    other = json.dumps({"username": "mal", "password": "an-account-of-mals"}).encode()
    assert server.ask(create, reviewer, other, "POST", **as_json)[0] == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403), ("evil.example:5000", 403), ("mlflow.lab.evil.example", 403), ("10.1.2.30:5000", 403),
        ("192.168.1.9", 403), ("other.lab:7001", 403), ("localhost.evil.example:80", 403), ("mlflow.lab", 200),
        ("mlflow.lab:5000", 200), ("other.lab:7000", 200), ("10.1.2.3:1", 200), ("localhost:9999", 200),
        ("[::1]:9999", 200), ("127.0.0.1", 200),
    ],
)  # fmt: skip
def test_it_answers_under_the_allowed_names_alone(server: Served, host: str, status: int) -> None:
    assert server.status(API, LOGIN, Host=host) == status


def test_another_sites_page_changes_nothing(server: Served) -> None:
    create = "/ajax-api/2.0/mlflow/experiments/create"
    headers = {"Origin": "https://evil.example", "Content_Type": "application/json"}
    assert server.ask(create, LOGIN, b'{"name": "forged"}', "POST", **headers)[0] == 403


def test_what_it_writes_is_the_users_alone_and_holds_no_password(server: Served, root: Path) -> None:
    home = Home(root)
    for path in (home.mlflow_users, home.mlflow_access, home.mlflow_key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert PASSWORD not in server.command_lines()
    for path in root.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("name", "password", "message"),
    [
        ("", PASSWORD, "--auth needs MLFLOW_TRACKING_USERNAME"),
        ("ann", "", "--auth needs MLFLOW_TRACKING_PASSWORD"),
        ("ann", "elevenchars", "at least 12 characters"),
        ("ann", "password1234", "easily guessed"),
        ("ann", "Administrator", "easily guessed"),
        ("administrators", "administrators123", "easily guessed"),
        ("ann", "aaaaaaaaaaaaaaaa", "easily guessed"),
        ("a:b", PASSWORD, "holds a colon"),
    ],
)
def test_there_is_no_default_and_no_weak_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, password: str, message: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", name)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    with pytest.raises(UserError, match=message) as refusal:
        CliRunner().invoke(ui, ["--auth", "--home", str(tmp_path / "home")], catch_exceptions=False)
    assert not password or password not in str(refusal.value)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "add --auth, or --no-auth"),
        (["--host", "10.0.0.5"], "add --auth, or --no-auth"),
        (["--allowed-hosts", "*"], r"--allowed-hosts \* is no host's name"),
        (["--allowed-hosts", "a.lab,http://b.lab"], "--allowed-hosts http://b.lab is no host's name"),
        (["--database", "postgresql://ann:pass-word@db/runs"], r"--database postgresql://ann:\*\*\*@db/runs shows"),
        (["--database", "http://db/runs"], "--database=http://db/runs is no database"),
        (["--database", "runs.db"], "--database='runs.db' is a plain folder"),
        (["--database", "postgresql+nothing://ann@db/runs"], "needs the Python module nothing"),
        (["--artifacts", "s3://key:sec/ret@bucket"], "--artifacts=s3://... holds a password"),
    ],
)
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    with pytest.raises(UserError, match=message) as refusal:
        CliRunner().invoke(ui, arguments, catch_exceptions=False)
    assert "pass-word" not in str(refusal.value) and "sec/ret" not in str(refusal.value)


def test_an_account_file_that_others_read_is_refused(tmp_path: Path) -> None:
    Home(tmp_path).mlflow_users.touch(0o644)
    said = run_process("ui", "--auth", "--port", str(free_ports(1)[0]), home=tmp_path, **account())
    assert said.code == 2 and "mlflow-users.db can be read by others" in said.err and "Traceback" not in said.err


def test_database_and_artifacts_lie_where_they_are_told_to(tmp_path: Path) -> None:
    """The database's address, which may hold a password, is in no command line."""
    database, kept = tmp_path / "far" / "runs.db", tmp_path / "far" / "kept"
    database.parent.mkdir()
    address = f"sqlite:///{database}"
    with served(tmp_path / "home", "--artifacts", str(kept), MLFLOW_BACKEND_STORE_URI=address) as server:
        assert server.ask(ARTIFACT, None, b"a note", "PUT")[0] == 200
        made = server.ask(
            "/api/2.0/mlflow/experiments/create", None, b'{"name": "far"}', "POST", Content_Type="application/json"
        )
        found = server.ask(f"/api/2.0/mlflow/experiments/get?experiment_id={json.loads(made[1])['experiment_id']}")
        assert json.loads(found[1])["experiment"]["artifact_location"].startswith("mlflow-artifacts:/")
        assert str(database) not in server.command_lines()
    assert database.is_file() and [path.name for path in kept.rglob("*") if path.is_file()] == ["note.txt"]
    assert not (tmp_path / "home" / "mlflow.db").exists()


def test_clients_reach_object_storage_through_the_server_without_its_keys(tmp_path: Path) -> None:
    import boto3

    with s3_at_hand("kept") as s3:
        environment = {**account(), "MLFLOW_S3_ENDPOINT_URL": f"http://{s3.endpoint}"}
        with served(tmp_path, "--auth", "--artifacts", "s3://kept/artifacts", **environment) as server:
            assert server.ask(ARTIFACT, None, b"a note", "PUT")[0] == 401
            assert server.ask(ARTIFACT, LOGIN, b"a note", "PUT")[0] == 200
            assert server.ask(ARTIFACT, LOGIN) == (200, b"a note")
        client = boto3.client("s3", endpoint_url=f"http://{s3.endpoint}")
        found = client.list_objects_v2(Bucket="kept")["Contents"]
    assert [each["Key"] for each in found] == ["artifacts/0/some-run/artifacts/note.txt"]
