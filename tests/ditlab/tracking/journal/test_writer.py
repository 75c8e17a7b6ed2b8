"""The journal: cheap to write, whole after a crash, and without repeats after a resume."""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from ditlab.runs.listing import run_rows
from ditlab.tracking.history import final_values, metric_history
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import read_record
from support.journals import read_records


@pytest.fixture
def journal(new_run):
    """The journal of a new run."""
    with closing(JournalWriter(new_run())) as journal:
        yield journal


@pytest.mark.parametrize(
    "torn", [b'\n{"kind":"metrics","time":1,"st', b'\n{"kind":"metr\n\x00', b""]
)
def test_a_torn_last_line_is_cut_off_and_one_that_lacks_its_newline_alone_is_kept(journal, torn):
    journal.log_metrics(1, {"train/loss": 1.0})
    journal.close()
    journal.path.write_bytes(journal.path.read_bytes().rstrip(b"\n") + torn)
    with closing(JournalWriter(journal.folder)) as again:
        again.log_metrics(1, {"train/loss": 1.0})
        again.log_metrics(2, {"train/loss": 2.0})
    steps = [record["step"] for record in read_records(journal.folder.journal)]
    assert steps == [1, 2]


def test_a_resume_repeats_no_step_of_a_metric(journal):
    journal.log_metrics(250, {"train/loss": 1.0})
    journal.log_metrics(200, {"eval/loss": 0.5})
    journal.close()
    resumed = JournalWriter(journal.folder)
    assert resumed.last_step("train/") == 250 and resumed.last_step("system/") is None
    # a new metric of an old step is new; of one that was logged, the first value stays
    resumed.log_metrics(200, {"eval/loss": 0.625, "eval/distance": 3.0})
    resumed.close()
    history = metric_history(journal.folder)
    assert history["eval/loss"].values.tolist() == [0.5]
    assert history["eval/distance"].values.tolist() == [3.0]


def test_nan_and_infinities_survive(journal):
    journal.log_metrics(1, {"nan": math.nan, "high": math.inf, "low": -math.inf})
    assert b'"NaN"' in journal.path.read_bytes()
    values = final_values(metric_history(journal.folder))
    assert math.isnan(values["nan"]) and (values["high"], values["low"]) == (math.inf, -math.inf)


def test_threads_never_mix_their_lines(journal):
    def write(stream):
        for step in range(500):
            journal.log_metrics(step, {f"{stream}/{key}": step for key in "abcdefgh"})

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, ("train", "eval", "system")))
    history = metric_history(journal.folder)
    assert len(history) == 24
    assert all(series.steps.tolist() == list(range(500)) for series in history.values())


def test_paths_inside_the_run_are_relative(journal, tmp_path):
    assert journal.relative_path(journal.folder.media / "a.png") == "media/a.png"
    assert journal.relative_path(tmp_path / "b.png") == str(tmp_path / "b.png")


def test_training_loss_is_the_median_of_the_last_steps(home, new_run):
    """The recent loss of 1,000 steps is that of the last 20; one batch of another size of loss
    changes nothing, and NaN is not skipped.
    """
    folder = new_run()

    def row():
        return run_rows(home, [read_record(folder)]).rows[0]

    with closing(JournalWriter(folder)) as journal:
        for step in range(1, 1000):
            journal.log_metrics(step, {"train/loss": 1.0 if step <= 980 else 0.5 + step / 1e6})
        journal.log_metrics(1000, {"train/loss": 40.0, "eval/velocity": 0.4})
    loss = row()["train_loss"]
    assert row()["step"] == 1000 and loss == pytest.approx(0.5 + 990.5e-6)
    assert final_values(metric_history(folder)) == {"train/loss": loss, "eval/velocity": 0.4}
    with closing(JournalWriter(folder)) as journal:
        journal.log_metrics(1001, {"train/loss": math.nan})
    assert math.isnan(row()["train_loss"])
    folder = new_run()
    assert math.isnan(row()["train_loss"])
