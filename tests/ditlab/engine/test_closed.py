"""A closed engine leaves the process as it found it: torch's own functions, and no network in
memory.
"""

import gc
import sys
import weakref

import pytest
import torch
from torch.nn import functional

from ditlab.engine.distributed import single_process
from ditlab.errors import UserError
from support.trainings.engines import Pass, engine_for, module_for, run_step
from support.trainings.workers import tiny

OWN = torch._C._nn.linear


def experiment_of(stage):
    return tiny(engine__zero__stage=stage)


def test_linear_is_replaced_until_the_last_engine_closes():
    """The second engine is around the same module, whose parameters are partitioned already."""
    first, second = module_for(experiment_of(3)), module_for(experiment_of(3))
    with single_process(use_gpu=False) as rank:
        engines = [
            engine_for(experiment_of(3), rank, 1, module=module) for module in (first, second)
        ]
        replaced = functional.linear
        assert replaced is not OWN
        engines.pop(0).close()
        assert functional.linear is replaced
        engines.append(engine_for(experiment_of(3), rank, 1, module=first))
        engines.pop(0).close()
        assert functional.linear is replaced and run_step(engines[0], 0, [Pass(0)])[1] > 0
        engines.pop().close()
        assert functional.linear is OWN


def test_linear_is_restored_where_an_engine_cannot_be_built(monkeypatch):
    def fail(*_):
        raise UserError("no engine")

    monkeypatch.setattr("ditlab.engine.engine.initialize", fail)
    with single_process(use_gpu=False) as rank, pytest.raises(UserError):
        engine_for(experiment_of(3), rank, 1)
    assert functional.linear is OWN


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_closed_engines_network_is_freed(interrupted):
    """Stage 3 keeps modules whose forward pass is under way in a list of the process."""

    def fail(*_):
        raise MemoryError

    with single_process(use_gpu=False) as rank:
        for stage in range(4):
            module = module_for(experiment_of(stage))
            engine = engine_for(experiment_of(stage), rank, 1, module=module)
            if interrupted:
                module.network.blocks[0].register_forward_hook(fail)
                with pytest.raises(MemoryError):
                    run_step(engine, 0, [Pass(0)])
            else:
                run_step(engine, 0, [Pass(0)])
            engine.close()
            left = weakref.ref(module.network)
            del engine, module
            gc.collect()
            assert left() is None, stage


def test_later_errors_name_no_rank():
    before = sys.excepthook
    with single_process(use_gpu=False):
        assert torch.distributed.is_initialized()
    assert sys.excepthook is before
