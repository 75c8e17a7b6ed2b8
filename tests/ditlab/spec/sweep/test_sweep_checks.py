"""Refusals of `check_sweep`: one sentence that begins with the file and names field, value and
remedy.
"""

import time

import pytest

from ditlab.spec.sweep_space import check_sweep, enumerate_trials
from ditlab_models.families import families
from support.damage import refused
from support.specs import RATE, RATES, choice, dotted, grid, refusal, uniform, whole


def fixed(**values):
    return {"fixed": dotted(values)}


FAMILIES = ", ".join(families())
KIND = choice("constant", "warmup_cosine")
FINAL = uniform(0.0, 0.2)
COSINE = {"schedule.kind": "warmup_cosine"}
TIMES = choice({"kind": "uniform"}, {"kind": "logit_normal", "mean": 0.0, "std": 1.0})
SEEDS = {"seed": whole(0, 1)}
KINDS = {"schedule.kind": KIND}
TIME = {"objective.time": TIMES}
GRID = {"search": {"kind": "grid"}, "trials": None}
STEPS = {"fixed": {"training.steps": 300, "evaluation.every": 100}}
ASHA = {**STEPS, "scheduler": {"kind": "asha", "grace": 100}}
PBT = {**STEPS, "scheduler": {"kind": "pbt", "interval": 100}}


@pytest.mark.parametrize(
    ("space", "changes"),
    [
        (
            {
                **KINDS,
                "schedule.final": {**FINAL, "when": COSINE},
                "objective.time": TIMES,
            },
            {},
        ),
        ({"schedule.final": FINAL}, fixed(schedule__kind="warmup_cosine")),
        (
            {
                "data.kind": choice("digits", "arrow"),
                "data.path": choice("a", "b", data__kind="arrow"),
            },
            {},
        ),
        ({"model.width": choice(24, 48), "model.num_heads": choice(3, 6)}, GRID),
        ({**RATES, "seed": grid(0, 1)}, {}),
        (
            RATES,
            {"search": {"kind": "optuna"}, "metric": ["eval/a", "eval/b"], "mode": ["min", "max"]},
        ),
        ({"training.ema": choice(None, {"decay": 0.9})}, {"metric": "train/loss"}),
        ({"model.depth": whole(1, 2), "schedule.kind": KIND}, ASHA),
        ({**RATES, "training.ema.decay": uniform(0.9, 0.99)}, PBT),
        (
            RATES,
            {**STEPS, "scheduler": {"kind": "median", "grace": 100}, "search": {"kind": "optuna"}},
        ),
    ],
)
def test_what_is_right(sweep_of, space, changes):
    check_sweep(sweep_of(space, **changes), "sweep.yaml")


PATHS = [
    (
        {"optimizer.lrr": RATE},
        {},
        "space.optimizer.lrr=0.0001: optimizer.kind=adamw has no field 'lrr'; did you mean",
    ),
    (
        {"model.depth.x": RATE},
        {},
        "space.model.depth.x=0.0001: model.depth is a plain value and holds no 'x'; set",
    ),
    (
        SEEDS,
        fixed(training__stpes=3),
        "fixed.training.stpes=3: training.stpes is no known field; did you mean 'steps'?",
    ),
    (
        {**KINDS, "schedule.final": FINAL},
        {},
        "has no field 'final'; set schedule.kind to warmup_cosine first. A field of some trials alone is an axis with `when: {schedule.kind: ...}`.",
    ),
    (
        {
            **KINDS,
            "schedule.final": {**FINAL, "when": {"schedule.kind": ["constant", "warmup_cosine"]}},
        },
        {},
        "schedule.kind=constant has no field 'final'",
    ),
    (
        {"name": choice("a", "b")},
        {},
        "space.name cannot vary, as trials are named after the sweep; remove the axis.",
    ),
    ({"checkpoint": choice({"every": 1})}, {}, "space.checkpoint cannot vary, as all trials"),
    (
        SEEDS,
        fixed(name="x"),
        "fixed.name='x': trials are named after the sweep; set the sweep's name.",
    ),
    (
        RATES,
        fixed(optimizer__lr=0.1),
        "fixed.optimizer.lr and space.optimizer.lr both set optimizer.lr;",
    ),
    (
        {"objective.time": TIMES, "objective.time.std": FINAL},
        {},
        "gives the whole of objective.time, and space.objective.time.std a field in it; write",
    ),
    (
        {"seed": choice(1, schedule__knid=1), "schedule.kind": KIND},
        {},
        "space.seed.when={schedule.knid: 1} names no axis; did you mean 'schedule.kind'?",
    ),
    (
        {"seed": choice(1, schedule__kind="cosine"), "schedule.kind": KIND},
        {},
        "space.seed.when={schedule.kind: 'cosine'} asks for a value that schedule.kind never has (kind choice);",
    ),
    (
        {
            "seed": whole(1, 2),
            "model.depth": choice(1, 2, seed=1),
            "batch.size": choice(64, seed=2, model__depth=1),
        },
        {},
        "space.batch.size never exists, as its `when` and those of the axes that it names lead in a circle or ask ",
    ),
]
VALUES = [
    (
        {"optimizer.lr": uniform(-1.0, 1.0)},
        {},
        "space.optimizer.lr at -1.0: optimizer.lr=-1.0 must be above 0.",
    ),
    (
        {"model.depth": uniform(1, 3)},
        {},
        "model.depth=1.0 must be a whole number; use an axis of kind int.",
    ),
    (
        {"data.kind": choice("digits", "arrow")},
        {},
        "space.data.kind at 'arrow': data.path is missing; give it a value.",
    ),
    (SEEDS, fixed(optimizer__lr=-1.0), "base with `fixed`: optimizer.lr=-1.0 must be above 0."),
    (
        SEEDS,
        {"base": {"name": "x"}},
        f"base: model.family is missing; set it to one of {FAMILIES}.",
    ),
    (
        {"model.width": choice(24, 32), "model.num_heads": choice(2, 3)},
        GRID,
        "trial 3 (model.width=32, model.num_heads=3): model.width=32 is no multiple of model.num_heads=3;",
    ),
]
NUMBERS = [
    (
        RATES,
        {"trials": None},
        "trials=null leaves search.kind=random without an end; give a number.",
    ),
    (
        {**RATES, "seed": whole(0, 1)},
        GRID,
        "space.optimizer.lr.kind=loguniform has no end of values for search.kind=grid; use kind: grid with values written out, or set search.kind to random.",
    ),
    (
        {"seed": whole(0, 9), "batch.size": choice(64, 128)},
        {**GRID, "trials": 8},
        "space has 20 combinations (seed 10, batch.size 2), and trials=8; set trials to 20, or take values out.",
    ),
    (
        {"seed": grid(0, 1, 2)},
        {},
        "space has 3 combinations (seed 3), and trials=8; set trials to a multiple of 3, or take values out.",
    ),
    (
        {"schedule.kind": KIND, "seed": {"kind": "grid", "values": [0, 1], "when": COSINE}},
        {},
        "space.seed, of kind grid, depends on schedule.kind, which is drawn again in every trial; make space.schedule.kind an axis of kind grid too",
    ),
    (
        RATES,
        {"metric": ["a", "b"]},
        "metric=['a', 'b'] names several, which only search.kind=optuna weighs",
    ),
    (
        RATES,
        {**ASHA, "metric": ["a", "b"], "search": {"kind": "optuna"}},
        "and scheduler.kind=asha ranks by one",
    ),
    (
        TIME,
        {"metric": "train/loss"},
        "metric=train/loss is the loss that space.objective.time changes, so small weights, or weight on the easiest data, would win; rank by a held-out metric without weights, such as eval/velocity.",
    ),
]
SCHEDULERS = [
    (
        RATES,
        {**ASHA, **fixed(training__steps=300, evaluation__every=None)},
        "evaluation.every=null gives",
    ),
    (RATES, {**PBT, "trials": 3}, "trials=3, concurrent=null make no population"),
    (KINDS, PBT, "space.schedule.kind cannot change in the middle of a run"),
    (
        RATES,
        {**ASHA, **fixed(training__steps=300, evaluation__every=101)},
        "evaluation.every=101 gives no figure to rank by within scheduler.grace=100 steps; set fixed.evaluation.every to 100 or a part of it, or scheduler.grace to 101.",
    ),
    (
        RATES,
        {**ASHA, **fixed(training__steps=100, evaluation__every=100)},
        "scheduler.grace=100 leaves nothing of training.steps=100 to stop or change; set scheduler.grace below 100.",
    ),
    (
        RATES,
        {**ASHA, **fixed(training__steps=None, training__epochs=2)},
        "training.epochs=2, and scheduler.kind=asha counts steps; set fixed.training.epochs to null and fixed.training.steps to a number.",
    ),
    (
        {"training.steps": whole(200, 300)},
        {**ASHA, **fixed(evaluation__every=100)},
        "space.training.steps gives trials a rhythm of their own, and scheduler.kind=asha compares them at the same step; set fixed.training.steps, or set",
    ),
    (
        RATES,
        {**STEPS, "scheduler": {"kind": "pbt", "interval": 150}},
        "scheduler.interval=150 is no multiple of evaluation.every=100, at which trials are compared; set scheduler.interval to 100 or 200, or fixed.evaluation.every to 50.",
    ),
    (
        RATES,
        {**PBT, "concurrent": 4},
        "search.kind=random, trials=8, concurrent=4 make no population for scheduler.kind=pbt, which trains at once; set search.kind to random, trials to 4 or more, and concurrent to null.",
    ),
    ({"optimizer.lr": grid(0.1, 0.2)}, PBT, "space.optimizer.lr cannot change in the middle"),
    (
        {"optimizer.lr": {**RATE, "when": {"optimizer.eps": 0.1}}, "optimizer.eps": choice(0.1)},
        PBT,
        "cannot change in the middle",
    ),
    (TIME, PBT, "space.objective.time cannot change in the middle of a run"),
    (
        {"batch.size": choice(64, 128)},
        PBT,
        "vary single fields under optimizer, schedule, objective, training.clip, training.ema, sampling, and no kind, without `when` or kind: grid, or set scheduler.kind to asha.",
    ),
]


@pytest.mark.parametrize(("space", "changes", "said"), [*PATHS, *VALUES, *NUMBERS, *SCHEDULERS])
def test_what_is_refused(sweep_of, space, changes, said):
    message = refusal(check_sweep, sweep_of(space, **changes), "sweep.yaml")
    assert message.startswith("sweep.yaml: ") and said in message


def test_a_grid_too_large_is_refused_before_it_is_made(sweep_of):
    space = {name: whole(1, 10**6) for name in ("seed", "batch.size", "model.depth", "model.width")}
    start = time.process_time()
    with refused(r"space has more than 10,000 combinations \(seed 1,000,000, "):
        check_sweep(sweep_of(space, **GRID), "sweep.yaml")
    assert time.process_time() - start < 1


def test_every_trial_is_tried(sweep_of):
    """Both ends fit; the draws between them do not."""
    sweep = sweep_of({"model.width": whole(32, 64)}, trials=20)
    widths = [trial["model.width"] for trial in enumerate_trials(sweep)]
    first = next(number for number, width in enumerate(widths) if width % 4)
    with refused(rf"^sweep\.yaml: trial {first} \(model\.width={widths[first]}\): model\.width="):
        check_sweep(sweep, "sweep.yaml")
    check_sweep(sweep_of({"model.width": {**whole(32, 64), "step": 4}}, trials=20), "sweep.yaml")
