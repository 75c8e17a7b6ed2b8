"""A mistake in a sweep ends with exit code 2, one sentence, and no run; a dry run creates none."""

import json

import pytest

from ditlab.spec.sweep import load_sweep
from ditlab.spec.yaml_text import dump_yaml
from ditlab.sweeps.prepare import local_nodes, prepare_sweep
from ditlab.sweeps.start import create_sweep
from support.opened import file_states

LR = {"kind": "loguniform", "low": 1e-4, "high": 1e-1}
MISTAKES = {
    "no such metric": (
        {"metric": "eval/velocty"},
        "metric=eval/velocty is reported by no trial of this sweep; did you mean 'eval/velocity'?",
    ),
    "no device hours": ({"budget": {"device_hours": 0}}, "budget.device_hours=0 must be above 0"),
    "no data": (
        {"fixed": {"data": {"kind": "arrow", "path": "nowhere"}}},
        "nowhere holds no store",
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


def left(home):
    """Names under DITLAB_HOME, except the store of the embedded digits and the marker of the home's
    format.
    """
    return sorted(path.name for path in home.glob("*") if path.name not in ("stores", "home.json"))


def test_mistakes_in_a_sweep(ditlab, home, written):
    for name, (changes, message) in MISTAKES.items():
        ditlab("tune", written(**changes)).refused(message)
        assert left(home) == [], name


def test_address_where_nothing_answers(ditlab, home, written):
    ditlab("tune", written(), "--address", "127.0.0.1:1").refused(
        "--address 127.0.0.1:1: no Ray cluster answers there"
    )
    assert not home.exists()


def test_dry_run_shows_every_trial_and_creates_none(ditlab, home, written):
    said = ditlab("tune", written(), "--dry-run").ok()
    same, heading, *rows = [line for line in said.out.splitlines() if line.strip()][:6]
    assert same.startswith("all 4 trials: workers 1 x 1 CPU, parameters ")
    assert heading.split() == ["trial", "lr"] and [row.split()[0] for row in rows] == [*"0123"]
    assert "expected: " in said.out and "2 at once" in said.out
    assert "rates: dit, 1 axis, random search, scheduler none" in said.err
    said = ditlab("tune", written(), "--dry-run", "--json").ok()
    assert (said.json["status"], said.json["num_trials"]) == ("dry-run", 4)
    assert left(home) == []


def test_dry_run_of_a_resumed_sweep(ditlab, home, made):
    before = file_states(home / "train")
    trials = ditlab("tune", "--resume", made, "--dry-run", "--json").ok().json["trials"]
    assert file_states(home / "train") == before
    lines = (home / "train" / made / "trials.jsonl").read_text().splitlines()
    ledger = [json.loads(line)["values"] for line in lines]
    assert [trial["values"] for trial in trials] == ledger and len(ledger) == 4
