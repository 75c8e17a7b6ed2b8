"""The profile hook of `first_entries.py`: imported by every process of a traced training, through
sitecustomize.

Writes into TRACE_FOLDER, a file a process: `spec-PID.jsonl`, the first call in each file of a
function that holds the spec, until the first optimiser step begins; `batch-PID.jsonl`, the same of
functions that hold the batch or what is computed of it, from the second step to the last but one,
and in data/ from the start; `all-PID.jsonl`, every first entry until the first step;
`calls-PID.json`, pairs of files, caller and callee, over the whole process.
"""

import atexit
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

FOLDER, ROOTS = Path(os.environ["TRACE_FOLDER"]), os.environ["TRACE_SOURCES"].split(os.pathsep)
NUM_STEPS = 40
STEP = ("training/stepping.py", "step")
COUNTING = ("training/timing.py", "step_work")
"""Function that computes a step on the meta device, once, to count its operations: aside of every
way.
"""
# a validator that runs whenever an experiment is made
VALIDATION = ("spec/experiment.py", "fits_together")
SPEC = {"Experiment", "Launch"}  # the second carries the first to a worker
BATCH = {"Tensor", "Parameter", "ndarray", "RecordBatch", "Table", "ChunkedArray"}
IMPORTING = "a module that is imported"

_files: dict[str, str | None] = {}
_seen: set[tuple[str, str]] = set()
_calls: set[tuple[str, str]] = set()
_steps = 0
_validations = 0


def _name(path: str) -> str | None:
    """`ditlab/training/trainer.py` of an absolute path below one of the roots; None of any
    other.
    """
    if path not in _files:
        root = next((root for root in ROOTS if path.startswith(root + os.sep)), None)
        _files[path] = None if root is None else str(Path(path).relative_to(Path(root).parent))
    return _files[path]


def _hook(frame: FrameType, event: str, _: object) -> None:
    global _steps, _validations
    code = frame.f_code
    if event != "call" or (name := _name(code.co_filename)) is None or _is_body(code):
        return
    if name.endswith(STEP[0]) and code.co_name == STEP[1]:
        _steps += 1
    if name.endswith(VALIDATION[0]) and code.co_name == VALIDATION[1]:
        _validations += 1
    if (caller := _caller(frame)) == IMPORTING:
        return
    if caller and caller != name and (caller, name) not in _calls and not _is_counting(frame):
        _calls.add((caller, name))
    # rows are gathered before the step that they are for
    is_ahead = name.startswith("ditlab/data/")
    if (
        (is_ahead or 2 <= _steps < NUM_STEPS)
        and ("batch", name) not in _seen
        and any(_is_batch(value, has_metrics=_steps >= 2) for value in _arguments(frame))
        and not _is_counting(frame)
    ):
        _note("batch", name, code.co_name)
    if _steps == 0:
        _note("all", name, code.co_name)
        if ("spec", name) not in _seen and any(map(_is_spec, _held(frame))):
            _note("spec", name, code.co_name)


def _is_body(code: CodeType) -> bool:
    """True for the body of a module or class, which runs while it is imported."""
    return not code.co_flags & inspect.CO_OPTIMIZED


def _is_counting(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == COUNTING[1] and frame.f_code.co_filename.endswith(COUNTING[0]):
            return True
        frame = frame.f_back
    return False


def _caller(frame: FrameType) -> str | None:
    """The nearest file of ours above this call: torch, click and Ray in between are looked
    through.
    """
    above = frame.f_back
    while above is not None:
        if (name := _name(above.f_code.co_filename)) is not None:
            return IMPORTING if _is_body(above.f_code) else name
        above = above.f_back
    return None


def _arguments(frame: FrameType) -> Iterator[Any]:
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        yield frame.f_locals.get(name)


def _held(frame: FrameType) -> Iterator[Any]:
    """The arguments of a call, and the fields of those that are records or objects of ours."""
    for value in _arguments(frame):
        yield value
        if type(value).__module__.startswith(("ditlab", "ditlab_models")):
            yield from list(getattr(value, "__dict__", {}).values())


def _is_spec(value: Any) -> bool:
    return any(kind.__name__ in SPEC for kind in type(value).__mro__)


def _is_batch(value: Any, has_metrics: bool) -> bool:
    """True for numbers of a batch: tensors, arrays, tables, and collections of these; with
    `has_metrics`, once steps give some, also metrics by name (before, a manifest's numbers look
    alike)."""
    if isinstance(value, Mapping):
        return any(
            _is_batch(one, has_metrics)
            or (has_metrics and isinstance(key, str) and isinstance(one, float))
            for key, one in value.items()
        )
    if isinstance(value, list | tuple):
        return any(_is_batch(one, has_metrics) for one in value[:3])
    return type(value).__name__ in BATCH


def _note(way: str, name: str, function: str) -> None:
    if (way, name) not in _seen:
        _seen.add((way, name))
        with (FOLDER / f"{way}-{os.getpid()}.jsonl").open("a") as out:
            out.write(json.dumps({"time": time.time(), "file": name, "function": function}) + "\n")


def _write_calls() -> None:
    if _calls:
        (FOLDER / f"calls-{os.getpid()}.json").write_text(json.dumps(sorted(_calls)))
    if _validations:
        (FOLDER / f"validations-{os.getpid()}.txt").write_text(str(_validations))


atexit.register(_write_calls)
threading.setprofile(_hook)
sys.setprofile(_hook)
