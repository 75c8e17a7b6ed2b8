"""The refusal of a tracking address is told in its own words, with the remedy that helps; loopback
takes no proxy.
"""

import os
import shlex
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
from click.testing import CliRunner
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from mlflow.server.security_utils import INVALID_HOST_MSG

from ditlab.home import Home
from ditlab.tracking import access
from ditlab.tracking.access import check_reachable, refusal_message
from ditlab.tracking.backend import RunGoneError
from ditlab.tracking.mlflow_connection import connect, denial, outage_reason
from ditlab.tracking.mlflow_runs import check_alive, find_or_create_experiment
from support import databases

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture
def server(monkeypatch):
    """A server on loopback that refuses with 403 and a text, behind a proxy of the environment that
    takes nothing.
    """
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")
    for name in PROXIES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(403)
            self.end_headers()
            self.wfile.write(self.server.text.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.text, server.uri = INVALID_HOST_MSG, f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def test_a_refusal_quotes_the_answer_and_no_password(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong-horse-battery")
    said = refusal_message("http://lab", 403, f"{INVALID_HOST_MSG}\nno: wrong-horse-battery")
    assert f"MLflow at http://lab refuses this (403: {INVALID_HOST_MSG} no: " in said
    assert "wrong-horse" not in said
    assert "set MLFLOW_TRACKING_USERNAME" in said and "--allowed-hosts" in said
    assert refusal_message("http://lab", 404, "x") is None


def test_the_answer_within_an_error_of_mlflows_client_is_found():
    words = (
        "API request to endpoint /x failed with error code 403 != 200. Response body: "
        f"'{INVALID_HOST_MSG}'"
    )
    assert denial(MlflowException(words, PERMISSION_DENIED)) == (403, INVALID_HOST_MSG)
    assert denial(MlflowException("no such run")) == (None, "")


def test_an_error_s_first_line_that_says_what_is_wrong():
    full = "(sqlite3.OperationalError) database or disk is full"
    dropped = RuntimeError("Max retries exceeded (ResponseError('too many 503 error responses'))")
    for begin in ("", "(raised as a result of Query-invoked autoflush)\n"):
        assert outage_reason(RuntimeError(f"{begin}{full}\n[SQL: ...]")) == full
    assert outage_reason(dropped) == f"{dropped}; the server's log says why"


@pytest.mark.parametrize("given", ["", "intern.example, 10.0.0.1", "*"])
def test_requests_to_this_machine_take_no_proxy_and_others_do(server, monkeypatch, given):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, given)
    assert check_reachable(server.uri) is None
    assert requests.get(server.uri, timeout=5).status_code == 403
    for host in ("127.0.0.1:5000", "localhost:5000", "[::1]:5000"):
        assert requests.utils.should_bypass_proxies(f"http://{host}/x", None), host
        assert urllib.request.proxy_bypass(host), host
    everything = given == "*"
    assert bool(urllib.request.proxy_bypass("mlflow.lab:5000")) is everything
    assert requests.utils.should_bypass_proxies("http://mlflow.lab:5000/", None) is everything
    for name in ("no_proxy", "NO_PROXY"):
        assert os.environ[name].startswith(given.replace(" ", ""))
    before = dict(os.environ)
    access.exempt_from_proxies()
    assert dict(os.environ) == before, "once is enough"


def test_a_deleted_experiment_and_a_deleted_run_name_the_command_that_restores_them(
    tmp_path, mlflow_template
):
    home = Home(databases.seed(tmp_path / "a home", mlflow_template)).ensure()
    uri = f"sqlite:///{home.mlflow_database}"
    client = connect(uri, home)
    number = find_or_create_experiment(client, "digits", uri, home, "")
    run = client.create_run(number).info.run_id
    client.delete_run(run)
    with pytest.raises(RunGoneError, match="was deleted in MLflow") as caught:
        check_alive(client, run)
    follow(str(caught.value), uri)
    check_alive(client, run)
    client.delete_experiment(number)
    for look in (
        lambda: find_or_create_experiment(client, "digits", uri, home, ""),
        lambda: check_alive(client, run),
    ):
        with pytest.raises(RunGoneError, match="experiment 'digits' was deleted") as caught:
            look()
    follow(str(caught.value), uri)
    assert find_or_create_experiment(client, "digits", uri, home, "") == number
    check_alive(client, run)


def follow(message, uri):
    """Do what a message says between its first backquotes."""
    from mlflow.cli import cli

    program, *arguments = shlex.split(message.split("`")[1])
    assert program == "mlflow"
    done = CliRunner().invoke(
        cli, arguments, env={"MLFLOW_TRACKING_URI": uri}, catch_exceptions=False
    )
    assert done.exit_code == 0, done.output


NOBODY = """
import os, pwd, sys
for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME"):
    os.environ.pop(name, None)
def missing(*_):
    raise KeyError("getpwuid(): uid not found: 12345")
pwd.getpwuid = missing
from ditlab.home import Home
from ditlab.tracking.mlflow_connection import connect
home = Home.from_environment().ensure()
client = connect(f"sqlite:///{home.mlflow_database}", home)
run = client.create_run("0").info.run_id
client.log_metric(run, "loss", 0.5)
print(client.get_run(run).data.metrics)
"""


@pytest.mark.slow  # a process that imports MLflow
def test_a_user_without_a_home_and_without_an_entry_in_passwd_is_tracked(tmp_path, mlflow_template):
    """As `docker run --user 12345` has it."""
    home = databases.seed(tmp_path / "home", mlflow_template)
    done = subprocess.run(
        [sys.executable, "-c", NOBODY],
        env={**os.environ, "DITLAB_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "{'loss': 0.5}", done.stderr
