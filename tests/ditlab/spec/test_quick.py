"""A run of about a minute out of every shipped spec, and what it leaves as it was set."""

import pytest

import ditlab
from ditlab.spec.quick import (
    BATCH,
    RHYTHM,
    STEPS,
    load_quick_experiment,
    load_quick_sweep,
    shorten_experiment,
)
from ditlab.spec.sweep_space import check_sweep, enumerate_trials, experiment_for
from support.damage import refused
from support.specs import EXPERIMENTS, FILES, RATES, SWEEPS, choice, grid, whole

DIGITS = EXPERIMENTS / "digits/dit.yaml"
SCHEDULES = EXPERIMENTS / "digits/sweep_schedule.yaml"


@pytest.fixture(scope="module")
def shortened():
    """Every shipped spec made short, by its file."""
    return {path: ditlab.quick(path) for path in [*FILES, *SWEEPS]}


def test_every_shipped_experiment_is_made_short(shortened):
    for path in FILES:
        short = shortened[path].spec
        training, evaluation = short.training, short.evaluation
        assert (training.steps, training.epochs) == (STEPS, None), path
        assert short.batch.size <= BATCH and evaluation.samples <= 4 and evaluation.limit <= 32
        assert evaluation.every >= STEPS and evaluation.quality == 0
        assert (short.checkpoint.every or STEPS) >= STEPS and not short.engine.compile
        assert getattr(short.schedule, "warmup", 0) <= 2 and short.sampling.steps <= 10
        assert short.model == ditlab.load(path).model and short.name.endswith("-quick")


def test_every_shipped_sweep_is_made_short(shortened):
    for path in SWEEPS:
        sweep = shortened[path].spec
        check_sweep(sweep, str(path))
        assert sweep.trials == 2 and len(enumerate_trials(sweep) or [0, 0]) == 2, path
        assert set(sweep.space) == set(ditlab.load_sweep(path).space) and sweep.name.endswith(
            "-quick"
        )
        trial = experiment_for(sweep, {})
        assert trial.training.steps == STEPS and trial.batch.size <= BATCH
        assert (trial.evaluation.every == RHYTHM) == (sweep.scheduler.kind == "asha")
        assert (trial.evaluation.quality == 100) == sweep.metric.startswith("quality/")


def test_what_is_set_stays():
    sets = [
        "evaluation.samples=16",
        "batch.size=64",
        "sampling={solver: euler, steps: 25}",
        "name=mine",
    ]
    short = load_quick_experiment(DIGITS, sets).spec
    assert (short.evaluation.samples, short.batch.size) == (16, 64)
    assert (short.sampling.steps, short.name) == (25, "mine")
    assert (short.training.steps, short.evaluation.limit) == (STEPS, 32)


@pytest.mark.parametrize("override", ["training.steps=10", "training={steps: 10}"])
def test_a_length_that_is_set_has_a_short_warmup(override):
    found = load_quick_experiment(DIGITS, [override])
    assert (found.spec.training.steps, found.spec.schedule.warmup) == (10, 2)


def test_steps_that_are_set_take_the_place_of_a_length_in_epochs():
    quick = load_quick_experiment(
        EXPERIMENTS / "mnist/dit.yaml", ["training.steps=7", "training.epochs=null"]
    )
    assert (quick.spec.training.steps, quick.spec.training.epochs) == (7, None)


def test_workers_share_the_batch():
    for workers, micro, expected in (
        ("{min: 2, max: 8}", "32", (16, 2)),
        ("32", "4", (32, 1)),
    ):
        before = ditlab.load(
            DIGITS, [f"resources.workers={workers}", "batch.size=256", f"batch.micro={micro}"]
        )
        short = shorten_experiment(before).spec
        assert (short.batch.size, short.batch.micro) == expected


def test_mistakes_are_those_of_the_spec():
    message = "leaves nothing of training.steps=20; set schedule.warmup to 2"
    with refused(message):
        load_quick_experiment(DIGITS, ["schedule.warmup=50"])


def test_twice_changes_nothing():
    short = load_quick_experiment(DIGITS).spec
    again = shorten_experiment(short)
    assert again.spec == short and again.lines() == ["--quick changes nothing."]
    sweep = load_quick_sweep(SWEEPS[0]).spec
    assert ditlab.quick(sweep).spec == sweep


def test_sweeps_keep_what_is_set():
    sets = ["trials=4", "fixed.training.steps=10", "fixed.evaluation.limit=128"]
    sweep = load_quick_sweep(SCHEDULES, sets).spec
    trial = experiment_for(sweep, {})
    assert (sweep.trials, trial.evaluation.limit) == (4, 128)
    assert (trial.training.steps, trial.schedule.warmup) == (10, 2)


def varied(**changes):
    return ditlab.Sweep.model_validate(ditlab.load_sweep(SCHEDULES).to_dict() | changes)


def test_a_grid_is_drawn_from():
    axes = {"model.num_heads": grid(1, 2, 4), "seed": whole(0, 9)}
    short = ditlab.quick(varied(space=axes, search={"kind": "grid"}, trials=None)).spec
    assert (short.search.kind, len(enumerate_trials(short))) == ("random", 2)


def test_an_axis_of_a_length_stays():
    short = ditlab.quick(varied(space={"batch.size": choice(64, 128)})).spec
    assert list(short.space) == ["batch.size"] and "batch.size" not in short.fixed


def test_a_population_keeps_its_size_and_its_rhythm():
    short = ditlab.quick(
        varied(
            space=RATES,
            scheduler={"kind": "pbt", "interval": 100},
            concurrent=None,
        )
    ).spec
    assert (short.trials, short.scheduler.interval) == (4, RHYTHM)
    assert experiment_for(short, {}).evaluation.every == RHYTHM


def test_every_change_is_a_line_of_a_terminal(shortened):
    for found in shortened.values():
        first, *lines = found.lines()
        assert first == f"--quick makes {len(lines)} changes:" and len(lines) == len(found.changes)
        assert all(line.isprintable() for line in lines), lines
    before = ditlab.load(DIGITS).training.steps
    assert f"  training.steps=20 (was {before})" in shortened[DIGITS].lines()
