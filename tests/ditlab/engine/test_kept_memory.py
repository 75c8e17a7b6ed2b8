"""Memory that glibc keeps from step to step; in a process of its own, whose heap holds nothing else."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
FAULTS = """
import json, resource
import torch
from ditlab.engine.distributed import single_process
from ditlab.engine.kept_memory import kept_memory
from support.trainings.engines import engine_for
from support.trainings.plain_muon import small

def faults():
    found = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensors = [torch.ones(2**22) for _ in range(16)]
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        del tensors
    return min(found)

found = [faults()]
with kept_memory():
    found.append(faults())
found.append(faults())
with single_process(use_gpu=False) as rank:
    engine = engine_for(small(0), rank, accumulation=1)
    found.append(faults())
    engine.close()
print(json.dumps([*found, faults()]))
"""
"""Fewest page faults of filling 16 tensors of 16 MiB that are freed together: outside, inside, outside, while an engine
is open, and after it."""
PAGES = 16 * 2**24 // 4096


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library than glibc")
def test_tensors_take_the_memory_of_earlier_ones_while_an_engine_is_open():
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    before, inside, after, with_engine, closed = json.loads(done.stdout.splitlines()[-1])
    assert min(before, after, closed) > PAGES / 2
    assert max(inside, with_engine) < PAGES / 4
