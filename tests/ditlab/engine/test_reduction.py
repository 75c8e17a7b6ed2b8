"""Gradients are averaged with fewer copies than DeepSpeed's, and to the same bits."""

import tempfile
from pathlib import Path

import pytest
import torch

from ditlab.engine import engine as engine_module
from ditlab.engine.distributed import current_rank, single_process
from support.trainings.engines import Job, Pass, Step, batch_of, drive, engine_for, noise_of
from support.trainings.groups import run_group
from support.trainings.plain_muon import small
from support.trainings.workers import tiny

CASES = [(0, "fp32"), (1, "fp32"), (2, "fp32"), (1, "bf16"), (2, "bf16")]


def experiment_of(stage, precision):
    return tiny(model__depth=1, engine__zero={"stage": stage}, training__precision=precision)


def copying(engine, stage, num_workers):
    """DeepSpeed's own way, but for a reduction over one worker at stage 0."""
    if (stage, num_workers) == (0, 1):
        engine.enable_backward_allreduce = False


def traces(rank, num_workers):
    """What this worker computes and holds in each case, after two steps of two passes."""
    script = [Step([[Pass(2 * each), Pass(2 * each + 1)] for each in range(num_workers)])] * 2
    return [drive(rank, Job(experiment_of(*case), script)) for case in CASES]


def assert_equal_with_and_without(rank, num_workers):
    spared = traces(rank, num_workers)
    own, engine_module.skip_redundant_copies = engine_module.skip_redundant_copies, copying
    try:
        copied = traces(rank, num_workers)
    finally:
        engine_module.skip_redundant_copies = own
    for case, one, two in zip(CASES, spared, copied, strict=True):
        assert one[:2] == two[:2], case
        for (*key, values), (*other, others) in zip(one[2], two[2], strict=True):
            assert key == other and torch.equal(values, others), (case, key)


def gradients_of(rank, stage):
    """Gradients that an engine holds before its step."""
    engine = engine_for(small(stage, kind="adamw", no_decay=[]), rank, 1)
    engine.forward_backward(batch_of(0, Pass(0)), noise_of(0, Pass(0)), last=True)
    if stage == 0:
        found = [each.grad for each in engine._module.parameters()]
    else:
        found = [part for parts in engine._engine.optimizer.averaged_gradients.values() for part in parts]
    engine.step(0, 1e-3)
    engine.close()
    return [each for each in found if each.any()]  # the rest is padding


def _body(rank, num_workers, folder):
    torch.set_num_threads(1)
    place = current_rank(False, rank, num_workers, rank)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=num_workers
    )
    for stage in (0, 1):
        held = {each.untyped_storage().data_ptr() for each in gradients_of(place, stage)}
        assert len(held) == 1, f"stage {stage}: gradients lie in {len(held)} buffers"
    assert_equal_with_and_without(place, num_workers)
    torch.distributed.destroy_process_group()


def test_one_worker_copies_no_gradient(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("gradients of one worker were copied into a buffer")

    with single_process(use_gpu=False) as rank:
        for stage in (1, 2):
            with monkeypatch.context() as patched:
                patched.setattr("deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer.allreduce_bucket", refuse)
                assert gradients_of(rank, stage)
        assert_equal_with_and_without(rank, 1)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [2, 3])
def test_gradients_of_several_workers_are_views_of_what_was_summed(num_workers):
    with tempfile.TemporaryDirectory() as folder:
        run_group(_body, (num_workers, str(Path(folder))), num_workers)
