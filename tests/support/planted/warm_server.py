"""Server that forks one process for each command, after imports that all share: `python
warm_server.py`.

Reads jobs from standard input, a JSON object a line (`sources`: folders for `sys.path`; `arguments`
of `ditlab`; `folder` to run in), and answers each with a line: `code`, `out`, `err`. No module of
the project is imported before a fork, so that each job may take another copy of the code.
"""

import json
import multiprocessing
import os
import runpy
import sys
import traceback
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pydantic  # noqa: F401
import rich.table  # noqa: F401
import sklearn.datasets  # noqa: F401
import torch._dynamo  # noqa: F401


def _run(job: dict[str, object]) -> None:
    """Run a command in this process, a fork, and end it."""
    folder = Path(str(job["folder"]))
    for number, name in ((1, "out"), (2, "err")):
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
    os.chdir(folder)
    os.environ["DITLAB_HOME"] = str(folder / "home")
    sys.path[:0] = list(job["sources"])  # type: ignore[call-overload]
    sys.argv = ["ditlab", *job["arguments"]]  # type: ignore[misc]
    code = 0
    try:
        from ditlab_addons.check import process_group

        # A spawned worker would import torch again, for longer than it computes.
        process_group._context = lambda: multiprocessing.get_context("fork")
        runpy.run_module("ditlab", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Answer jobs until standard input ends."""
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            _run(job)
        _, status = os.waitpid(child, 0)
        folder = Path(job["folder"])
        said = {
            name: (folder / name).read_text() if (folder / name).exists() else ""
            for name in ("out", "err")
        }
        print(json.dumps({"code": os.waitstatus_to_exitcode(status), **said}), flush=True)


if __name__ == "__main__":
    main()
