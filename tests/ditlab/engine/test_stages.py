"""Every ZeRO stage and number of workers trains the same model, and loads the state of any
other.
"""

import shutil

import pytest
import torch

from ditlab.checkpoints.store import open_checkpoint
from support.trainings.workers import newest, tiny, train_here, train_workers

STAGES = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


def evaluated(stage, **changes):
    """Held-out metrics and samples in the middle and at the end."""
    evaluation = {"every": 3, "samples": 2, "limit": 50}
    return tiny(
        engine__zero={"stage": stage}, evaluation=evaluation, sampling={"steps": 1}, **changes
    )


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


def final(path):
    return newest(path)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_same_loss_curve_whatever_the_stage_and_the_workers(curves, workers, stage):
    found, _ = curves
    reference = found[1, 0]
    assert list(reference) == [1, 2, 3, 4, 5, 6]
    assert reference[6] < reference[1]
    for step, loss in found[workers, stage].items():
        assert loss == pytest.approx(reference[step], rel=2e-5), f"step {step}"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_same_held_out_figures_whatever_the_stage_and_the_workers(curves, workers, stage):
    """Four batches over two workers, the last one short; at stage 3 every forward pass needs
    both.
    """
    _, paths = curves
    expected, found = (
        final(path).manifest.metrics for path in (paths[1, 0], paths[workers, stage])
    )
    assert found["eval/velocity"] == pytest.approx(expected["eval/velocity"], rel=1e-4)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_same_state_in_the_checkpoint(curves, workers, stage):
    _, paths = curves
    reference, reader = final(paths[1, 0]), final(paths[workers, stage])
    assert reader.manifest.scalars["adam_step"] == 6
    assert reader.manifest.position == 6 * 32
    assert reader.manifest.shapes == reference.manifest.shapes
    for name, shape in reference.manifest.shapes.items():
        numel = torch.Size(shape).numel()
        for field in ("master", "exp_avg", "ema"):
            expected, found = (
                reference.read(field, name, 0, numel),
                reader.read(field, name, 0, numel),
            )
            # Adam divides by the root of tiny second moments: summation order shows in the fourth
            # digit.
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize(
    "stage", [0, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (1, 2)), 3]
)
def test_state_moves_to_any_stage(curves, home, tmp_path, stage):
    """Six steps at stage 2 with two workers, three more here at another stage: as if never
    moved.
    """
    _, paths = curves
    unbroken = tiny(training__steps=9, engine__zero={"stage": stage})
    _, reference = train_here(unbroken, home, tmp_path / "unbroken")
    shutil.copytree(paths[2, 2], tmp_path / "moved")
    _, recorder = train_here(unbroken, home, tmp_path / "moved")
    assert sorted(recorder.losses) == [7, 8, 9]
    for step, loss in recorder.losses.items():
        assert loss == pytest.approx(reference.losses[step], rel=1e-4)
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
    one, two = final(curves[1][1, stage]), final(tmp_path / "broken")
    for name, shape in one.manifest.shapes.items():
        numel = torch.Size(shape).numel()
        for field in ("master", "exp_avg", "exp_avg_sq", "ema"):
            assert torch.equal(one.read(field, name, 0, numel), two.read(field, name, 0, numel)), (
                field,
                name,
            )


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.slow), 2, 3])
def test_bf16_follows_fp32_and_resumes(curves, home, tmp_path, stage):
    experiment = tiny(engine__zero={"stage": stage}, training__precision="bf16")
    _, recorder = train_here(experiment, home, tmp_path / "bf16")
    for step, loss in recorder.losses.items():
        assert loss == pytest.approx(curves[0][1, 0][step], rel=2e-2)
    train_here(experiment, home, tmp_path / "broken", stop_after=3)
    train_here(experiment, home, tmp_path / "broken")
    one, two = final(tmp_path / "bf16"), final(tmp_path / "broken")
    for name, shape in one.manifest.shapes.items():
        numel = torch.Size(shape).numel()
        assert torch.equal(
            one.read("master", name, 0, numel), two.read("master", name, 0, numel)
        ), name


def test_without_a_micro_batch_size_workers_change_no_draw(curves):
    found, _ = curves
    assert list(found[2, "by batch"]) == [1, 2, 3, 4, 5, 6]
    for step, loss in found[2, "by batch"].items():
        assert loss == pytest.approx(found[1, "by batch"][step], rel=2e-5)


def test_accumulation_changes_nothing(home, tmp_path):
    """32 samples at once with one draw per micro-batch of 16, or two micro-batches accumulated."""
    _, two = train_here(tiny(training__steps=1), home, tmp_path / "two")
    _, four = train_here(tiny(training__steps=1, batch__micro=8), home, tmp_path / "four")
    assert two.losses[1] != four.losses[1]  # other micro-batches, other draws: the key says so
    again = train_here(tiny(training__steps=1), home, tmp_path / "again")[1]
    assert again.losses == two.losses
