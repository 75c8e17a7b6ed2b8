"""Memory that glibc keeps from step to step."""

import ctypes
import resource

import pytest
import torch

from ditlab.engine.distributed import single_process
from ditlab.engine.kept_memory import kept_memory
from support.trainings.engines import engine_for
from support.trainings.plain_muon import small

NUM, SIZE = 16, 2**22
PAGES = NUM * SIZE * 4 // 4096
needs_glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library than glibc")


def fewest_faults() -> int:
    """Fewest page faults of filling 16 tensors of 16 MiB that are then freed; the first ones may find too little."""
    found = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensors = [torch.ones(SIZE) for _ in range(NUM)]
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        del tensors
    return min(found)


@needs_glibc
def test_tensors_take_the_memory_of_earlier_ones_inside_alone():
    assert fewest_faults() > PAGES / 2
    with kept_memory():
        assert fewest_faults() < PAGES / 4
    assert fewest_faults() > PAGES / 2


@needs_glibc
def test_an_engine_on_a_cpu_keeps_memory_until_it_is_closed():
    with single_process(use_gpu=False) as rank:
        engine = engine_for(small(0), rank, accumulation=1)
        inside = fewest_faults()
        engine.close()
    assert inside < PAGES / 4
    assert fewest_faults() > PAGES / 2
