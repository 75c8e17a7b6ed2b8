"""Every ZeRO stage and number of workers trains the same model, and loads the state of any
other.
"""

import shutil

import pytest
import torch

from ditlab.checkpoints.store import open_checkpoint
from support.marks import slow
from support.trainings.workers import (
    contents,
    newest,
    resumed_exactly,
    same_state,
    tiny,
    train_here,
    train_workers,
)

STAGES = (0, 1, 2, 3)


def evaluated(stage, **changes):
    """Held-out metrics and samples in the middle and at the end."""
    evaluation = {"every": 3, "samples": 2, "limit": 50}
    return tiny(engine__zero__stage=stage, evaluation=evaluation, sampling__steps=1, **changes)


@pytest.fixture(scope="module")
def curves(home, tmp_path_factory):
    """Losses by (workers, stage), and by workers for draws by batch; and the paths of the
    checkpoints.
    """
    folder = tmp_path_factory.mktemp("curves")
    found, paths = {}, {}
    for stage in STAGES:
        paths[1, stage] = folder / f"one-{stage}"
        outcome, recorder = train_here(evaluated(stage), home, paths[1, stage])
        assert outcome.status == "finished"
        found[1, stage] = recorder.losses
    jobs = []
    for stage in STAGES:
        paths[2, stage] = folder / f"two-{stage}"
        jobs.append((evaluated(stage, resources__workers=2), home, paths[2, stage]))
    found[1, "by batch"] = train_here(tiny(batch={"size": 32}), home, folder / "by-batch")[1].losses
    jobs.append((tiny(batch={"size": 32}, resources__workers=2), home, folder / "by-batch-two"))
    for kind, losses in zip((*STAGES, "by batch"), train_workers(jobs), strict=True):
        found[2, kind] = losses
    return found, paths


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_and_number_of_workers_trains_the_same_model(curves, workers, stage):
    """Losses, held-out metrics (four batches, the last one short; at stage 3 every forward pass
    needs both workers), and the state in the checkpoint.
    """
    losses, paths = curves
    reference = losses[1, 0]
    assert list(reference) == [1, 2, 3, 4, 5, 6] and reference[6] < reference[1]
    assert losses[workers, stage] == pytest.approx(reference, rel=2e-5)
    expected, found = newest(paths[1, 0]), newest(paths[workers, stage])
    assert found.manifest.metrics["eval/velocity"] == pytest.approx(
        expected.manifest.metrics["eval/velocity"], rel=1e-4
    )
    assert found.manifest.scalars["adam_step"] == 6 and found.manifest.position == 6 * 32
    assert found.manifest.shapes == expected.manifest.shapes
    # Adam divides by the root of tiny second moments: summation order shows in the fourth digit.
    torch.testing.assert_close(contents(found), contents(expected), rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("stage", [0, *slow(1, 2), 3])
def test_state_moves_to_any_stage(curves, home, tmp_path, stage):
    """Six steps at stage 2 with two workers, three more here at another stage: as if never
    moved.
    """
    _, paths = curves
    unbroken = tiny(training__steps=9, engine__zero__stage=stage)
    _, reference = train_here(unbroken, home, tmp_path / "unbroken")
    shutil.copytree(paths[2, 2], tmp_path / "moved")
    _, recorder = train_here(unbroken, home, tmp_path / "moved")
    last = {step: reference.losses[step] for step in (7, 8, 9)}
    assert recorder.losses == pytest.approx(last, rel=1e-4)
    assert open_checkpoint(tmp_path / "moved" / "step-00000009").manifest.scalars["adam_step"] == 9


@pytest.mark.parametrize("stage", STAGES)
def test_resume_is_bit_identical(curves, home, tmp_path, stage):
    """Stopped after four steps in the middle of an epoch and resumed: the same bits as never
    stopped.
    """
    experiment = evaluated(stage)
    stopped, before = train_here(experiment, home, tmp_path / "broken", stop_after=4)
    assert (stopped.status, stopped.step) == ("interrupted", 4)
    resumed, after = train_here(experiment, home, tmp_path / "broken")
    assert (resumed.status, resumed.step) == ("finished", 6)
    assert sorted(before.losses) == [1, 2, 3, 4] and sorted(after.losses) == [5, 6]
    assert same_state(newest(curves[1][1, stage]), newest(tmp_path / "broken"))


@pytest.mark.parametrize("stage", [*slow(1), 2, 3])
def test_bf16_follows_fp32_and_resumes(curves, home, tmp_path, stage):
    experiment = tiny(engine__zero__stage=stage, training__precision="bf16")
    recorder = resumed_exactly(experiment, home, tmp_path, 3)
    assert recorder.losses == pytest.approx(curves[0][1, 0], rel=2e-2)


def test_without_a_micro_batch_size_workers_change_no_draw(curves):
    losses, _ = curves
    assert losses[2, "by batch"] == pytest.approx(losses[1, "by batch"], rel=2e-5)
