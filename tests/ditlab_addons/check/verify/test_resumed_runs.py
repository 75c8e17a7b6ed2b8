"""A run resumed with another length: steps are verified by the spec of their time, unrecorded
changes are found.
"""

import pytest

from ditlab import train
from ditlab.errors import RunFailed
from ditlab.runs.launch import Launch
from support.damaged.verified import off, opened, rewrite_lines, verified
from support.trainings.forks import small

COSINE = {"kind": "warmup_cosine", "warmup": 2}


def longer(steps, keep=1):
    return small(
        name="checked",
        training={"steps": steps},
        schedule=COSINE,
        checkpoint={"every": 4, "keep": keep},
        batch={"size": 8},
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A home with a run of six steps that was resumed to nine and to twelve; its newest checkpoint
    is kept alone.
    """
    home = tmp_path_factory.mktemp("resumed") / "home"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DITLAB_HOME", str(home))
        run = train(longer(6), local=True).run_id
        train(longer(9), local=True, resume=run)
        train(longer(12, keep=2), local=True, resume=run)
    return home


@pytest.mark.slow
def test_an_honest_run_holds_and_its_steps_are_done_again_by_their_own_specs(home):
    found = verified(home, steps=2)
    verdicts = {part.part: part.verdict for part in found.parts}
    assert {*verdicts.values()} == {"holds"} and {"spec", "replay"} <= {*verdicts}
    spec = next(part.sentence for part in found.parts if part.part == "spec")
    assert spec.endswith(
        "training.steps: 6 -> 9 after step 6; training.steps: 9 -> 12, checkpoint.keep: 1 -> 2 "
        "after step 9."
    )
    replayed = next(part.sentence for part in found.parts if part.part == "replay")
    first, *_ = replayed.removeprefix("steps ").split(",")
    assert int(first) <= 6
    assert replayed.split(", chosen")[0].count(",") == 1
    assert "to the bit" in replayed


def test_a_checkpoint_of_before_is_no_fault(tmp_path, monkeypatch):
    """Nor is a resume that ends before its first step."""
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path))
    run = train(longer(6, keep=9), local=True).run_id
    monkeypatch.setattr(
        Launch, "training_run", lambda launch: (_ for _ in ()).throw(RunFailed("no", kind="crash"))
    )
    with pytest.raises(RunFailed):
        train(longer(9, keep=9), local=True, resume=run)
    assert verified(tmp_path).holds
    monkeypatch.undo()
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path))
    train(longer(9, keep=9), local=True, resume=run)
    assert verified(tmp_path).holds
    assert (opened(tmp_path).folder.checkpoints / "step-00000004").is_dir()


def test_a_change_that_nothing_records_is_found(home):
    run = opened(home)
    rewrite_lines(
        run.folder.journal,
        lambda record: None if record["kind"] == "resume" and record["step"] == 6 else record,
    )
    assert "attempt 1 was trained by a spec of hash" in off(home)["spec"]


def test_a_spec_of_before_that_was_altered_is_found(home):
    (kept, other) = sorted(opened(home).folder.receipts.glob("spec-*.yaml"))
    kept.write_text(
        kept.read_text().replace("steps: 6", "steps: 7").replace("steps: 9", "steps: 8")
    )
    other.unlink()
    assert "by which steps were trained, is gone or altered" in off(home)["spec"]
