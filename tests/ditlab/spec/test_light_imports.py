"""The spec can be read where nothing heavy is installed."""

import subprocess
import sys

HEAVY = ("torch", "ray", "mlflow", "deepspeed", "pyarrow", "matplotlib", "numpy", "optuna")


def test_reading_a_spec_needs_no_heavy_library():
    code = (
        "import sys, ditlab.spec.loading, ditlab.spec.schema, ditlab.spec.space\n"
        "ditlab.spec.schema.experiment_schema()\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
