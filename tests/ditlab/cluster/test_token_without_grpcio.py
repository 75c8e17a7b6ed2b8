"""Tokens of clusters in an installation without grpcio, asked of a real control service of Ray."""

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from support.clusters.nodes import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TOKEN = "a1" * 32

ASK = """
import json, os, sys
sys.modules["grpc"] = None
from ditlab.cluster import access
from ditlab.errors import UserError
found = []
for environment in json.loads(sys.argv[2]):
    for name in (access.MODE, access.TOKEN, access.TOKEN_PATH):
        os.environ.pop(name, None)
    os.environ.update(environment)
    access.reload_token()
    try:
        with access.cluster_token(sys.argv[1]):
            found.append("")
    except UserError as error:
        found.append(str(error))
print(json.dumps(found))
"""


@pytest.fixture
def address(tmp_path):
    """Address of Ray's control service, which requires TOKEN."""
    (port,) = free_ports(1)
    program = Path(ray.__file__).parent / "core/src/ray/gcs/gcs_server"
    command = [
        program, f"--gcs_server_port={port}", "--node-ip-address=127.0.0.1", "--session-name=test", "--redis_password=",
        f"--ray-commit={ray.__commit__}", "--metrics-agent-port=1", f"--log_dir={tmp_path}",
        f"--config_list={base64.b64encode(b'{}').decode()}",
    ]  # fmt: skip
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    with (tmp_path / "gcs.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        time.sleep(2)
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def test_a_refusal_is_told_from_silence(address, tmp_path):
    cases = [
        ({}, "the cluster requires a token, and there is none here"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}, "the cluster refuses this token"),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": TOKEN}, "RAY_AUTH_MODE=disabled holds it back"),
        ({"RAY_AUTH_TOKEN": TOKEN}, ""),
    ]
    done = subprocess.run(
        [sys.executable, "-c", ASK, address, json.dumps([environment for environment, _ in cases])],
        capture_output=True, text=True, timeout=500, env={**os.environ, "HOME": str(tmp_path)}, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    for (environment, words), said in zip(cases, found, strict=True):
        assert words in said and (words or not said), (environment, said)
    assert done.stderr == ""
