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


def test_reading_a_spec_needs_no_heavy_library():
    code = (
        "import sys, ditlab.spec.files, ditlab.spec.schema, ditlab.spec.sweep_space\n"
        "ditlab.spec.schema.experiment_schema()\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_naming_encoders_needs_no_library_that_opens_them():
    spec = {
        "name": "a",
        "model": {"family": "pixelhdm"},
        "training": {"steps": 1},
        "encoders": {"text": "Qwen/Qwen3"},
    }
    code = (
        "import sys\n"
        "from ditlab.spec.experiment import class_for\n"
        f"print(class_for({spec}).model_validate({spec}).encoders.text)\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[:2] == ["Qwen/Qwen3", "[]"]
