"""Training, evaluation and sampling in one process load no Ray."""

import os
import subprocess
import sys

from support.databases import seed

SPEC = """\
name: alone
model: {family: dit, image_size: 8, patch_size: 4, width: 16, depth: 1, num_heads: 2}
batch: {size: 16}
training: {steps: 2}
evaluation: {every: 2, samples: 2, limit: 16}
sampling: {steps: 2}
tracking: {system_metrics: false}
"""
COMMANDS = """
import sys
from ditlab.cli.main import main

for command in (["train", "alone.yaml", "--local"], ["evaluate", "alone"], ["sample", "alone", "--num", "2"]):
    sys.argv = ["ditlab", *command]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (command, end.code)
    assert "torch" in sys.modules and "deepspeed" in sys.modules
    assert "ray" not in sys.modules, command
print("done without ray")
"""


def test_local_commands_load_no_ray(tmp_path, mlflow_template):
    seed(tmp_path / "home", mlflow_template)
    (tmp_path / "alone.yaml").write_text(SPEC)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], cwd=tmp_path, env={**os.environ, "DITLAB_HOME": str(tmp_path / "home")},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done without ray\n")
