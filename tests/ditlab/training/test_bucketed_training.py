"""Training on images of several sizes: as exact as on one."""

import pytest

from support.datasets.bucketed import SMALL_PIXELHDM, bucketed
from support.marks import slow
from support.trainings.workers import resumed_exactly, tiny, train_here, train_workers


def experiment(folder, **changes):
    """Seven steps an epoch, on 16, 4 and 11 images of the three sizes."""
    return tiny(
        model=SMALL_PIXELHDM,
        objective__weights={"velocity": 1.0, "frequency": 1.0, "alignment": 0.0},
        data={"kind": "arrow", "path": str(folder / "set"), "hold_out": 0.1},
        batch__size=4,
        batch__micro=2,
        training__steps=10,
        evaluation__every=5,
        evaluation__samples=0,
        evaluation__limit=5,
        sampling__height=16,
        sampling__width=16,
        **changes,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bucketed")
    bucketed(path / "set", {(8, 16): 12, (8, 8): 18, (16, 8): 5})
    return path


@pytest.mark.parametrize("stop_after", [*slow(4), 8])
def test_a_stopped_run_goes_on_to_the_same_bits(folder, tmp_path, stop_after):
    """Stopped in the first epoch and in the second."""
    recorder = resumed_exactly(experiment(folder), folder, tmp_path, stop_after)
    assert "eval/velocity" in recorder.values[5]


@pytest.mark.slow
def test_two_workers_train_on_the_same_numbers(folder, tmp_path):
    spec = experiment(folder)
    _, alone = train_here(spec, folder, tmp_path / "one")
    (losses,) = train_workers([(spec, folder, tmp_path / "two")])
    assert losses == pytest.approx(alone.losses, rel=1e-4)
