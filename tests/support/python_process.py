"""Python in a process of its own, run to its end."""

import subprocess
import sys
from typing import Any


def run_python(
    *arguments: object, code: int = 0, timeout: float = 300, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run Python with these arguments; assert that it ends with this exit code."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=timeout, **options
    )
    assert done.returncode == code, done.stderr
    return done
