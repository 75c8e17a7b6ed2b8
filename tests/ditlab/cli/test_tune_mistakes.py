"""A mistake in a sweep ends with exit code 2, one sentence, and no run; a dry run creates none."""

import json
import re

import pytest

from ditlab.home import Home
from ditlab.spec.sweep import load_sweep
from ditlab.spec.yaml_text import dump_yaml
from ditlab.sweeps.prepare import local_nodes, prepare_sweep
from ditlab.sweeps.start import create_sweep
from ditlab.tracking.records import create_run, list_runs

LR = {"kind": "loguniform", "low": 1e-4, "high": 1e-1}
RANGE = {"kind": "uniform", "low": 0.5, "high": 1.5}
GRID = {"kind": "grid", "values": list(range(20))}


def grid_of(*paths):
    return {path: {"kind": "grid", "values": [1, 2, 4]} for path in paths}


MISTAKES = {
    "no axis": ({"space": {}}, "space={} holds no axis; add one"),
    "no such axis": (
        {"space": {"optimizer.rl": LR}},
        "optimizer.kind=adamw has no field 'rl'; did you mean 'lr'?",
    ),
    "no such section": ({"space": {"optimiser.lr": LR}}, "did you mean 'optimizer'?"),
    "no such fixed": ({"fixed": {"training.stpes": 3}}, "did you mean 'steps'?"),
    "out of range": ({"space": {"training.ema.decay": RANGE}}, "must be below 1."),
    "not whole": (
        {"space": {"model.depth": {"kind": "uniform", "low": 1, "high": 4}}},
        "must be a whole number",
    ),
    "no such metric": (
        {"metric": "eval/velocty"},
        "metric=eval/velocty is reported by no trial of this sweep; did you mean 'eval/velocity'?",
    ),
    "no evaluation": (
        {"fixed": {"evaluation.every": None}},
        "metric=eval/velocity is reported by no trial",
    ),
    "weighted metric": (
        {
            "space": {"objective.weights.velocity": {"kind": "uniform", "low": 0.5, "high": 2.0}},
            "metric": "train/loss",
        },
        "so small weights, or",
    ),
    "too many cores": ({"fixed": {"resources.cpus_per_worker": 64}}, "at 64 CPUs each do not fit"),
    "a gpu": ({"fixed": {"resources.gpus_per_worker": 1}}, "needs 1 GPU, this machine has 0"),
    "a part of a gpu": (
        {"fixed": {"resources.gpus_per_worker": 0.25}},
        "needs 0.25 GPU, this machine has 0",
    ),
    "large grid": (
        {"search": {"kind": "grid"}, "space": {"model.depth": GRID}, "trials": 5},
        "space has 20 combinations (model.depth 20), and trials=5; set trials to 20",
    ),
    "endless grid": ({"search": {"kind": "grid"}}, "has no end of values for search.kind=grid"),
    "no end": ({"trials": None}, "trials=null leaves search.kind=random without an end"),
    "no trial": ({"trials": 0}, "trials=0 must be at least 1"),
    "small population": (
        {"scheduler": {"kind": "pbt", "interval": 2}, "trials": 2},
        "make no population",
    ),
    "late grace": (
        {"scheduler": {"kind": "asha", "grace": 50}},
        "scheduler.grace=50 leaves nothing",
    ),
    "no such kind": ({"scheduler": {"kind": "ahsa", "grace": 2}}, "did you mean 'asha'?"),
    "no time": ({"time_budget": "2 weeks"}, "time_budget='2 weeks' is no time"),
    "no device hours": ({"budget": {"device_hours": 0}}, "budget.device_hours=0 must be above 0"),
    "no budget": ({"budget": "4h"}, "budget='4h' must be a mapping of fields (device_hours)"),
    "unknown key": ({"trails": 4}, "did you mean 'trials'?"),
    "no base": ({"base": "nowhere.yaml"}, "nowhere.yaml"),
    "base of base": ({"base": "sweep.yaml"}, "sweep.yaml"),
    "password": (
        {"fixed": {"tracking.uri": "http://me:word@host:5000"}},
        "http://me:***@host:5000 holds a password",
    ),
    "no data": (
        {"fixed": {"data": {"kind": "arrow", "path": "nowhere"}}},
        "nowhere holds no store",
    ),
    "one bad trial": (
        {
            "search": {"kind": "grid"},
            "trials": None,
            "space": {
                "model.width": {"kind": "grid", "values": [48, 32]},
                "model.num_heads": {"kind": "grid", "values": [2, 3]},
            },
        },
        "trial 3 (model.width=32, model.num_heads=3): ",
    ),
}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Two cores and no GPU on every machine."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def written(spec, tmp_path):
    """`written(**changes)`: a sweep's file beside the small experiment."""

    def write(**changes):
        mapping = {
            "name": "rates",
            "base": spec.name,
            "space": {"optimizer.lr": LR},
            "metric": "eval/velocity",
            "trials": 4,
        }
        path = tmp_path / "sweep.yaml"
        path.write_text(dump_yaml({**mapping, **changes}), encoding="utf-8")
        return path

    return write


@pytest.fixture
def made(home, written):
    """The id of a sweep whose trials have not started."""
    path = written()
    return create_sweep(
        prepare_sweep(load_sweep(path, ()), str(path), local_nodes(), remote=False)
    ).folder.sweep_id


def check(said, message):
    assert said.code == 2, said
    assert said.out == "" and "Traceback" not in said.err
    assert said.err.startswith("ditlab: ") and said.err.count("\n") == 1
    assert message in said.err, said.err


def left(home):
    """Names under DITLAB_HOME, except the store of the embedded digits and the marker of the home's
    format.
    """
    return sorted(path.name for path in home.glob("*") if path.name not in ("stores", "home.json"))


def test_mistakes_in_a_sweep(ditlab, home, written):
    for name, (changes, message) in MISTAKES.items():
        check(ditlab("tune", written(**changes)), message)
        assert left(home) == [], name


def test_overrides_are_checked(ditlab, home, written):
    check(ditlab("tune", written(), "--set", "trials=0"), "trials=0 must be at least 1")
    check(
        ditlab("tune", written(), "--set", "space.optimizer.lr={kind: int, low: 3, high: 1}"),
        "low must be below high",
    )
    check(
        ditlab("tune", written(), "--dry-run", "--set", "metric=eval/x"),
        "metric=eval/x is reported by no trial",
    )
    assert left(home) == []


def test_experiment_is_no_sweep(ditlab, home, spec):
    check(ditlab("tune", spec), "ditlab train")
    assert not home.exists()


def test_sweep_is_no_experiment(ditlab, home, written):
    check(ditlab("train", written()), "use `ditlab tune`")
    assert not home.exists()


def test_missing_file(ditlab, home):
    for path in ("nowhere.yaml", "."):
        check(ditlab("tune", path), path)
    assert not home.exists()


def test_neither_file_nor_resumed_sweep(ditlab, home):
    check(ditlab("tune"), "neither SWEEP nor --resume is given")
    assert not home.exists()


def test_resume_auto_without_a_file(ditlab, home):
    check(
        ditlab("tune", "--resume", "auto"),
        "--resume auto finds a sweep by its file, and none is given",
    )
    assert not home.exists()


def test_overrides_without_a_file(ditlab, home, made):
    check(
        ditlab("tune", "--resume", made, "--set", "trials=8"),
        "--set trials=8 changes a file, and none is given",
    )


def test_address_where_nothing_answers(ditlab, home, written):
    check(
        ditlab("tune", written(), "--address", "127.0.0.1:1"),
        "--address 127.0.0.1:1: no Ray cluster answers there",
    )
    assert not home.exists()


def test_home_that_cannot_be_written(ditlab, spec, written, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(spec / "home"))
    check(ditlab("tune", written()), f"DITLAB_HOME={spec}/home cannot be written")


def test_full_disk_leaves_no_sweep(ditlab, home, written, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ditlab.sweeps.start.write_durably", full)
    check(ditlab("tune", written()), "cannot be written (No space left on device)")
    assert list_runs(Home(home)) == [] and list((home / "train").iterdir()) == []


def test_unknown_sweep(ditlab, home):
    check(ditlab("tune", "--resume", "nope"), "run 'nope' is unknown")
    assert not home.exists()


def test_ordinary_run_is_no_sweep(ditlab, home):
    run = create_run(Home(home), "digits", family="dit", spec_hash="")
    check(ditlab("tune", "--resume", run.run_id), f"run {run.run_id} is no sweep")
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


CHANGES = [
    ({"space": {"optimizer.lr": {**LR, "high": 0.5}}}, "space.optimizer.lr.high=0.5 (was 0.1)"),
    ({"space": {"optimizer.lr": LR, "seed": GRID}, "trials": 20}, "space.seed="),
    ({"seed": 7}, "seed=7 (was 0)"),
    ({"fixed": {"training.steps": 6}}, "fixed.training.steps=6"),
    ({"trials": 3}, "trials=3 (was 4)"),
    ({"metric": "train/loss"}, "metric='train/loss' (was 'eval/velocity')"),
]


def test_sweep_with_other_trials_is_not_resumed(ditlab, home, made, written):
    folder = home / "train" / made
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for changes, message in CHANGES:
        said = ditlab("tune", written(**changes), "--resume", made)
        check(said, f"sweep {made} was started as another one: {message}")
        assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_sweep_with_a_changed_base_is_not_resumed(ditlab, made, written, spec):
    spec.write_text(spec.read_text().replace("depth: 1", "depth: 2"))
    check(ditlab("tune", written(), "--resume", made), "base.model.depth=2 (was 1)")


def test_dry_run_shows_every_trial_and_creates_none(ditlab, home, written):
    said = ditlab("tune", written(), "--dry-run")
    assert said.code == 0, said.err
    same, heading, *rows = [line for line in said.out.splitlines() if line.strip()][:6]
    found = re.fullmatch(
        r"all 4 trials: workers 1 x 1 CPU, parameters ([\d,]+), steps 4, time \S+ s", same
    )
    assert found and int(found[1].replace(",", "")) > 10_000
    assert heading.split() == ["trial", "lr"] and len(rows) == 4
    for number, row in enumerate(rows):
        cells = row.split()
        assert cells[0] == str(number) and 1e-4 <= float(cells[1]) <= 1e-1
    assert "expected: " in said.out and "2 at once" in said.out
    assert "rates: dit, 1 axis, random search, scheduler none" in said.err
    assert left(home) == []


def test_dry_run_as_json(ditlab, home, written):
    said = ditlab("tune", written(trials=3, concurrent=1), "--dry-run", "--json")
    assert said.code == 0 and said.out.count("\n") == 1
    names = [
        "status",
        "trials",
        "num_trials",
        "concurrent",
        "seconds",
        "device_hours",
        "device",
        "idle_seconds",
    ]
    assert list(said.json) == names
    assert (said.json["status"], said.json["num_trials"], said.json["concurrent"]) == (
        "dry-run",
        3,
        1,
    )
    assert [list(trial) for trial in said.json["trials"]] == [
        ["number", "values", "parameters", "steps", "seconds", "configuration", "seed"]
    ] * 3
    assert said.json["seconds"] == pytest.approx(
        sum(trial["seconds"] for trial in said.json["trials"])
    )
    assert left(home) == []
    values = [trial["values"] for trial in said.json["trials"]]
    again = ditlab("tune", written(trials=3), "--dry-run", "--json").json
    assert [trial["values"] for trial in again["trials"]] == values


def test_dry_run_of_a_search_that_proposes_trials_as_it_goes(ditlab, home, written):
    said = ditlab("tune", written(search={"kind": "optuna"}), "--dry-run", "--json")
    assert (said.code, said.json["trials"], said.json["num_trials"]) == (0, [], 4)
    assert left(home) == []


def test_dry_run_of_a_resumed_sweep(ditlab, home, made):
    before = {path: path.read_bytes() for path in (home / "train").rglob("*") if path.is_file()}
    said = ditlab("tune", "--resume", made, "--dry-run", "--json")
    assert said.code == 0 and len(said.json["trials"]) == 4
    assert {
        path: path.read_bytes() for path in (home / "train").rglob("*") if path.is_file()
    } == before
    ledger = [
        json.loads(line)
        for line in (home / "train" / made / "trials.jsonl").read_text().splitlines()
    ]
    assert [trial["values"] for trial in said.json["trials"]] == [
        trial["values"] for trial in ledger
    ]
