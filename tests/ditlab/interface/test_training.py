"""Training as a function, as notebooks and scripts call it."""

from concurrent.futures import ThreadPoolExecutor

import torch

import ditlab
from ditlab.api.training import plan_training, train
from support.damage import refused
from support.trainings.family_specs import GAUSSIAN, smallest
from support.trainings.workers import tiny


def test_training_is_quiet_and_works_in_any_thread(home, spec, capfd):
    lines, progress = [], []
    with ThreadPoolExecutor(1) as pool:
        options = {"local": True, "say": lines.append, "on_progress": progress.append}
        result = pool.submit(
            train, spec, ["training.steps=2", "evaluation.every=null"], **options
        ).result()
    assert (result.status, result.step, result.total_steps) == ("finished", 2, 2)
    assert result.metrics["train/loss"] > 0 and result.folder == home / "train" / result.run_id
    assert result.checkpoint == str(result.folder / "checkpoints" / "step-00000002")
    assert lines[0].startswith("small: dit") and lines[-1].startswith(
        f"run {result.run_id}: 2 steps"
    )
    assert progress[-1].step == 2
    assert tuple(capfd.readouterr()) == ("", "")


def test_arguments_that_exclude_each_other(home, spec):
    with refused(r"--local and --address 10\.0\.0\.1:6379 exclude each other"):
        train(spec, local=True, address="10.0.0.1:6379")
    with refused(r"overrides=.* change a YAML file"):
        plan_training(tiny(), ["seed=1"], local=True)


def test_the_gaussian_process_trains_and_samples(home, blank_pictures):
    """From the spec to samples of both solvers."""
    experiment = smallest("dit", training__steps=4, **GAUSSIAN)
    result = train(experiment, local=True)
    assert result.metrics.keys() >= {"train/noise", "train/bound", "eval/bound", "eval/noise_t3"}
    run = ditlab.open_run(result.run_id)
    ancestral, deterministic = run.sample(2, steps=3), run.sample(2, solver="ddim", steps=3)
    assert ancestral.values.shape == (2, 1, 8, 8)
    assert not torch.equal(ancestral.values, deterministic.values)
