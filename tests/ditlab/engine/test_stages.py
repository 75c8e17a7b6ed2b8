"""Every ZeRO stage and number of workers trains the same model, and takes up the state of any other."""

import pytest
import torch

from ditlab.checkpoints.store import open_checkpoint
from support.workers import newest, tiny, train_here, train_workers

STAGES = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def curves(home, tmp_path_factory):
    """Losses by (workers, stage), and where the checkpoints lie."""
    folder = tmp_path_factory.mktemp("curves")
    found, paths = {}, {}
    evaluated = {"evaluation": {"every": 3, "samples": 2, "limit": 50}, "sampling": {"steps": 1}}
    for stage in STAGES:
        paths[1, stage] = folder / f"one-{stage}"
        outcome, recorder = train_here(tiny(engine__zero={"stage": stage}, **evaluated), home, paths[1, stage])
        assert outcome.status == "finished"
        found[1, stage] = recorder.losses
    jobs = []
    for stage in STAGES:
        paths[2, stage] = folder / f"two-{stage}"
        jobs.append((tiny(engine__zero={"stage": stage}, resources__workers=2, **evaluated), home, paths[2, stage]))
    for stage, losses in zip(STAGES, train_workers(jobs), strict=True):
        found[2, stage] = losses
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
    """Four batches over two workers, the last one short; at stage 3 every forward pass needs both."""
    _, paths = curves
    expected, found = (final(path).manifest.metrics for path in (paths[1, 0], paths[workers, stage]))
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
            expected, found = reference.read(field, name, 0, numel), reader.read(field, name, 0, numel)
            # Adam divides by the root of tiny second moments: summation order shows in the fourth digit.
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_state_moves_to_any_stage(curves, home, tmp_path, stage):
    """Six steps at stage 2 with two workers, three more here at another stage: as if never moved."""
    _, paths = curves
    import shutil

    unbroken = tiny(training__steps=9, engine__zero={"stage": stage})
    _, reference = train_here(unbroken, home, tmp_path / "unbroken")
    shutil.copytree(paths[2, 2], tmp_path / "moved")
    _, recorder = train_here(unbroken, home, tmp_path / "moved")
    assert sorted(recorder.losses) == [7, 8, 9]
    for step, loss in recorder.losses.items():
        assert loss == pytest.approx(reference.losses[step], rel=1e-4)
    assert open_checkpoint(tmp_path / "moved" / "step-00000009").manifest.scalars["adam_step"] == 9


@pytest.mark.parametrize("stage", STAGES)
def test_resume_is_bit_identical(home, tmp_path, stage):
    """Stopped after four steps in the middle of an epoch and resumed: the same bits as never stopped."""
    experiment = tiny(engine__zero={"stage": stage})
    train_here(experiment, home, tmp_path / "unbroken")
    stopped, before = train_here(experiment, home, tmp_path / "broken", stop_after=4)
    assert (stopped.status, stopped.step) == ("interrupted", 4)
    resumed, after = train_here(experiment, home, tmp_path / "broken")
    assert (resumed.status, resumed.step) == ("finished", 6)
    assert sorted(before.losses) == [1, 2, 3, 4] and sorted(after.losses) == [5, 6]
    one, two = final(tmp_path / "unbroken"), final(tmp_path / "broken")
    for name, shape in one.manifest.shapes.items():
        numel = torch.Size(shape).numel()
        for field in ("master", "exp_avg", "exp_avg_sq", "ema"):
            assert torch.equal(one.read(field, name, 0, numel), two.read(field, name, 0, numel)), (field, name)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bf16_follows_fp32_and_resumes(home, tmp_path, stage):
    experiment = tiny(engine__zero={"stage": stage}, training__precision="bf16")
    _, reference = train_here(tiny(), home, tmp_path / "fp32")
    _, recorder = train_here(experiment, home, tmp_path / "bf16")
    for step, loss in recorder.losses.items():
        assert loss == pytest.approx(reference.losses[step], rel=2e-2)
    train_here(experiment, home, tmp_path / "broken", stop_after=3)
    train_here(experiment, home, tmp_path / "broken")
    one, two = final(tmp_path / "bf16"), final(tmp_path / "broken")
    for name, shape in one.manifest.shapes.items():
        numel = torch.Size(shape).numel()
        assert torch.equal(one.read("master", name, 0, numel), two.read("master", name, 0, numel)), name


def test_without_a_micro_batch_size_workers_change_no_draw(home, tmp_path):
    alone = train_here(tiny(batch={"size": 32}), home, tmp_path / "alone")[1].losses
    (shared,) = train_workers([(tiny(batch={"size": 32}, resources__workers=2), home, tmp_path / "shared")])
    for step, loss in shared.items():
        assert loss == pytest.approx(alone[step], rel=2e-5)


def test_accumulation_changes_nothing(home, tmp_path):
    """32 samples at once with one draw per micro-batch of 16, or two micro-batches accumulated."""
    _, two = train_here(tiny(), home, tmp_path / "two")
    _, four = train_here(tiny(batch__micro=8), home, tmp_path / "four")
    assert two.losses[1] != four.losses[1]  # other micro-batches, other draws: the key says so
    again = train_here(tiny(), home, tmp_path / "again")[1]
    assert again.losses == two.losses
