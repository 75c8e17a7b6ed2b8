"""The spec can be read where nothing heavy is installed."""

import subprocess
import sys

HEAVY = (
    "torch",
    "ray",
    "mlflow",
    "deepspeed",
    "pyarrow",
    "matplotlib",
    "numpy",
    "optuna",
    "transformers",
)


def test_reading_specs_needs_no_heavy_library():
    """Nor does naming encoders."""
    spec = {
        "name": "a",
        "model": {"family": "pixelhdm"},
        "training": {"steps": 1},
        "encoders": {"text": "Qwen/Qwen3"},
    }
    code = (
        "import sys, ditlab.spec.files, ditlab.spec.schema, ditlab.spec.sweep_space\n"
        "ditlab.spec.schema.experiment_schema()\n"
        f"ditlab.spec.files.build_experiment({spec}, 'spec')\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
