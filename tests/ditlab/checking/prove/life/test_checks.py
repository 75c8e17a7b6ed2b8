"""All checks of a run's life, on the smallest run."""

import pytest

from ditlab.checking.prove.findings import PHASES
from ditlab.checking.prove.life import check_life
from ditlab.engine.distributed import single_process
from support.garbage import exempt_imports
from support.trainings.workers import tiny, training_run


@pytest.mark.slow
def test_a_sound_run_holds_in_every_phase(tmp_path):
    experiment = tiny(model__num_classes=10, model__label_dropout=0.2, schedule={"kind": "warmup_cosine", "warmup": 2})
    run = training_run(experiment, tmp_path / "home", tmp_path / "own")
    with single_process(use_gpu=False) as rank:
        found = check_life(run, rank, tmp_path / "proof")
    exempt_imports()
    assert not [each for each in found if not each.holds]
    wanted = {"draws", "learning rate", "resume", "evaluation", "sample", "dropout of conditions"}
    assert {each.phase for each in found} == wanted <= {*PHASES}
    told_apart = [each for each in found if each.phase == "evaluation" and "too little" not in each.detail]
    assert len(told_apart) > 1, "no figure tells the average from the weights"
    assert not (tmp_path / "own").exists(), "the run's own folder is left alone"
