"""A mistake in a sweep ends with exit code 2, one sentence, and no run; a dry run creates none."""

import pytest

from ditlab.spec.sweep import load_sweep
from ditlab.spec.yaml_text import dump_yaml
from ditlab.sweeps.prepare import local_nodes, prepare_sweep
from ditlab.sweeps.start import create_sweep
from support.opened import file_states

LR = {"kind": "loguniform", "low": 1e-4, "high": 1e-1}
NOWHERE = {"data": {"kind": "arrow", "path": "nowhere"}}
MISTAKES = (
    (
        {"metric": "eval/velocty"},
        "metric=eval/velocty is reported by no trial of this sweep; did you mean 'eval/velocity'?",
    ),
    ({"budget": {"device_hours": 0}}, "budget.device_hours=0 must be above 0"),
    ({"fixed": NOWHERE}, "nowhere holds no store"),
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Two cores and no GPU on every machine."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
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
        path.write_text(dump_yaml({**mapping, **changes}))
        return path

    return write


def left(home):
    """Names under DITLAB_HOME, except the store of the embedded digits and the marker of the home's
    format.
    """
    return sorted(path.name for path in home.glob("*") if path.name not in ("stores", "home.json"))


def test_mistakes_in_a_sweep(ditlab, home, written):
    for changes, message in MISTAKES:
        ditlab("tune", written(**changes)).refused(message)
        assert left(home) == [], message


def test_address_where_nothing_answers(ditlab, home, written):
    ditlab("tune", written(), "--address", "127.0.0.1:1").refused(
        "--address 127.0.0.1:1: no Ray cluster answers there"
    )
    assert not home.exists()


def test_dry_run_shows_every_trial_and_creates_none(ditlab, home, written):
    said = ditlab("tune", written(), "--dry-run").ok()
    assert said.out.startswith("all 4 trials: workers 1 x 1 CPU, parameters ")
    assert "expected: " in said.out and "2 at once" in said.out
    assert "rates: dit, 1 axis, random search, scheduler none" in said.err
    said = ditlab("tune", written(), "--dry-run", "--json").ok()
    assert (said.json["status"], said.json["num_trials"]) == ("dry-run", 4)
    assert left(home) == []


def test_dry_run_of_a_resumed_sweep(ditlab, home, written):
    path = written()
    sweep = prepare_sweep(load_sweep(path), str(path), local_nodes(), remote=False)
    folder = create_sweep(sweep).folder
    before = file_states(home / "train")
    trials = ditlab("tune", "--resume", folder.sweep_id, "--dry-run", "--json").json["trials"]
    assert file_states(home / "train") == before
    ledger = [trial.values for trial in folder.planned_trials()]
    assert [trial["values"] for trial in trials] == ledger and len(ledger) == 4
