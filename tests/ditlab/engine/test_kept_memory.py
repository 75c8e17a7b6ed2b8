"""Memory that glibc keeps from step to step; in a process of its own, whose heap holds nothing
else.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
RESIDENT = """
import json
import torch
from ditlab.engine.distributed import single_process
from ditlab.engine.memory import kept_memory
from support.trainings.engines import engine_for
from support.trainings.grouped import small

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def fill():
    tensors = [torch.ones(2**22) for _ in range(16)]
    del tensors
    return resident()

found = [resident()]
with kept_memory():
    with kept_memory():
        pass
    found.append(fill())
found.append(resident())
with single_process(use_gpu=False) as rank:
    engine = engine_for(small(0), rank, accumulation=1)
    found += [resident(), fill()]
    engine.close()
print(json.dumps([*found, resident()]))
"""
"""Resident bytes: at first, inside with 16 tensors of 16 MiB filled and freed, outside, with an
engine, with the same tensors filled and freed there, and with the engine closed."""
MOST = 200 * 2**20


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library than glibc"
)
@pytest.mark.slow
def test_freed_tensors_stay_while_an_engine_is_open_and_go_when_it_is_closed():
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    first, inside, outside, opened, filled, closed = json.loads(done.stdout.splitlines()[-1])
    assert inside - first > MOST
    assert inside - outside > MOST
    assert filled - opened > MOST
    assert filled - closed > MOST
