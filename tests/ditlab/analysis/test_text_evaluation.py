"""A run on text, evaluated: quality in training and afterwards, other stores."""

import pytest

from ditlab.home import Home
from ditlab.receipts.records import differing_parts
from support.damage import refused
from support.trainings.text_run import imported, train_on_text

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four steps, with quality at its end."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DITLAB_HOME", str(tmp_path_factory.mktemp("home")))
        patched.chdir(tmp_path_factory.mktemp("work"))
        yield train_on_text()


def test_quality_of_text_in_training_is_that_of_evaluate(run):
    last = run.metrics().to_pylist()[-1]
    logged = {name: value for name, value in last.items() if name.startswith("quality/")}
    assert {"quality/token_entropy_low", "quality/distinct_3_held_out"} <= set(logged)
    found = run.evaluate(quality=100, rows=30, batch=100)
    assert logged.items() <= found.metrics.items()
    assert found.measurements["quality"].parts["features"]


@pytest.mark.slow
def test_a_bound_has_an_interval_on_any_store(run):
    own = run.evaluate(rows=30)
    for name in ("bound", "bits_per_token", "bits_per_byte", "perplexity"):
        assert own.metrics[f"assessed/{name}_low"] < own.metrics[f"assessed/{name}"]
        assert own.metrics[f"assessed/{name}"] < own.metrics[f"assessed/{name}_high"]
    imported("other", 1, str(Home.from_environment().stores / "own"), None)
    for choice, num in (("train", 80), ("other", 100)):
        found = run.evaluate(data=choice)
        assert found.num_samples > num and found.num_unsent is None
        assert f"--data {choice}" in found.changes
        assert found.metrics["held_out/bound"] == pytest.approx(
            found.metrics["assessed/bound"], rel=1e-5
        )
        assert found.metrics["held_out/bound"] != own.metrics["assessed/bound"]
        measured = [each.measurements["held_out"] for each in (found, own)]
        assert "held-out samples" in differing_parts(measured)


def test_a_store_of_another_tokeniser_is_refused(run):
    imported("pieces", seed=2)
    with refused(r"--data pieces: its tokens were made by another tokeniser .* than the run's"):
        run.evaluate(data="pieces")
