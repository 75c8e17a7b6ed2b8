"""Mistakes of a person end with exit code 2, one sentence, and nothing left behind."""

import pytest

OVERRIDES = [
    ("model.dpeth=3", "did you mean 'depth'?"),
    (
        "schedule={kind: warmup_stable_decay, decay_start: 9}",
        "schedule.decay_start=9 does not lie between",
    ),
    (
        "resources.gpus_per_worker=1",
        "needs 1 GPU, this machine has 0; set resources.gpus_per_worker=0",
    ),
    ("resources.workers=2", "resources.workers=2 needs Ray, and --local is one process"),
    ("tracking.uri=htp://x", "tracking.uri='htp://x' is no tracking address"),
    ("data={kind: arrow, path: nowhere}", "nowhere holds no store"),
    ("data={kind: arrow, path: 'foo://bucket/x'}", "data.path=foo://bucket/x cannot be opened"),
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The same machine everywhere."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.chdir(tmp_path)


def test_specs(ditlab, home, spec):
    for override, message in OVERRIDES:
        ditlab("train", spec, "--local", "--set", override).refused(message)
        assert not home.exists(), override


def test_specs_that_do_not_fit_the_data(ditlab, home, spec):
    """The embedded digits are imported as a store; a run is not begun."""
    place = f"checkpoint.storage={spec}/below"
    for override, message in (
        ("batch={size: 5000, micro: null}", "batch.size=5000 is larger than the 1617 training"),
        (place, f"{place} cannot be written (Not a directory)"),
    ):
        ditlab("train", spec, "--local", "--set", override).refused(message)
        assert {path.name for path in home.glob("*")} <= {"stores", "home.json"}, override
        assert {path.name for path in home.glob("stores/[!.]*")} <= {"digits"}, override


def test_home_that_cannot_be_written(ditlab, spec, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(spec / "home"))
    ditlab("train", spec, "--local").refused(f"DITLAB_HOME={spec}/home cannot be written")


def test_unknown_figure(ditlab, home):
    ditlab("figures", "--kind", "schedles").refused("did you mean 'schedules'?")
