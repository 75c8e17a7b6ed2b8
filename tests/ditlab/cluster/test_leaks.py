"""An exception whose message holds every secret leaves none of them in streams, DITLAB_HOME, MLflow
or Ray's logs.
"""

import secrets
import shutil
import tempfile
from pathlib import Path

import pytest

from support.clusters.lab import Mlflow
from support.clusters.ray_instance import PLUGINS
from support.command import run_process
from support.served import account, guarded

PASSWORD, KEY, TOKEN = (
    "leaky-" + secrets.token_hex(8),
    "AKse/" + secrets.token_hex(12),
    secrets.token_hex(32),
)
SPEC = """\
name: leaking
model: {family: breaking, image_size: 8, patch_size: 4, width: 32, depth: 1, num_heads: 2}
objective: {fault: {kind: leak, step: 3, rank: 0}}
batch: {size: 32}
training: {steps: 6}
checkpoint: {every: 2}
evaluation: {every: 2, samples: 4, limit: 32}
sampling: {solver: euler, steps: 4}
tracking: {experiment: leaks, system_metrics: false}
"""


@pytest.fixture
def short():
    """A short folder for Ray, whose sockets need short names."""
    folder = Path(tempfile.mkdtemp(prefix="leak"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def files_with(folder, *words):
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            found += [f"{path}: {word}" for word in words if word.encode() in content]
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [("--local",), ()], ids=["local", "ray"])
def test_no_secret_is_left_anywhere(tmp_path, short, options):
    (tmp_path / "leaking.yaml").write_text(SPEC)
    home, log = tmp_path / "home", tmp_path / "server.log"
    with guarded(tmp_path / "mlflow", log, account(PASSWORD)) as server:
        environment = {
            **account(PASSWORD),
            "AWS_SECRET_ACCESS_KEY": KEY,
            "RAY_AUTH_TOKEN": TOKEN,
            "PYTHONPATH": str(PLUGINS),
            "MLFLOW_TRACKING_URI": server.url,
            "RAY_TMPDIR": str(short),
        }
        said = run_process(
            "train",
            tmp_path / "leaking.yaml",
            "--json",
            *options,
            home=home,
            cwd=tmp_path,
            **environment,
        )
        assert (
            said.code == 1 and "ConnectionError: no access with ['***', '***', '***']" in said.err
        )
        assert "objective.py" in said.err  # the traceback is there
        again = run_process("runs", "sync", home=home, cwd=tmp_path, **environment)
        listed = run_process("runs", "--json", home=home, cwd=tmp_path, **environment)
        assert again.code == listed.code == 0 and "***" in listed.json["runs"][0]["message"]
        mlflow = Mlflow(server, account(PASSWORD))
        (run,) = mlflow.ask("runs/search", experiment_ids=["1"])["runs"]
        tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
        assert "no access with" in tags["mlflow.note.content"]
    for text in (said.out, said.err, again.err, listed.out, listed.err, log.read_text()):
        assert not [word for word in (PASSWORD, KEY, TOKEN) if word in text]
    assert files_with(tmp_path, PASSWORD, KEY, TOKEN) == []
    assert options or any(short.rglob("worker*.err"))  # Ray's logs are where they are looked for
    assert files_with(short, PASSWORD, KEY, TOKEN) == []
