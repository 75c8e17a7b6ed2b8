"""The journal: cheap to write, whole after a crash, and without repeats after a resume."""

import math
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ditlab.home import Home, RunFolder
from ditlab.runs.listing import run_rows
from ditlab.tracking.history import DEVICES_TAG, JournalFacts, final_values, metric_history
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import read_record
from support.journals import read_records

NewRun = Callable[..., RunFolder]


def test_records_come_back_in_order(new_run: NewRun) -> None:
    folder = new_run()
    journal = JournalWriter(folder)
    journal.append("start", run_id=folder.run_id, name="a", experiment="b", family="dit")
    journal.log_metrics(1, {"train/loss": 0.1, "train/lr": 1e-4})
    journal.append("end", status="finished")
    journal.close()
    journal.close()
    records = list(read_records(folder.journal))
    assert [record["kind"] for record in records] == ["start", "metrics", "end"]
    assert records[1]["values"] == {"train/loss": 0.1, "train/lr": 1e-4}
    assert all(abs(record["time"] / 1000 - time.time()) < 60 for record in records)


@pytest.mark.parametrize(
    "torn", [b'{"kind":"metrics","time":1,"st', b'{"kind":"metr\n\x00\x00', b"\xff\xfe"]
)
def test_a_torn_last_line_is_cut_off(new_run: NewRun, torn: bytes) -> None:
    folder = new_run()
    journal = JournalWriter(folder)
    journal.log_metrics(1, {"train/loss": 1.0})
    journal.close()
    with folder.journal.open("ab") as file:
        file.write(torn)
    journal = JournalWriter(folder)
    journal.log_metrics(2, {"train/loss": 2.0})
    journal.close()
    assert [record["step"] for record in read_records(folder.journal)] == [1, 2]


def test_a_last_line_that_lacks_its_newline_alone_is_kept_once(new_run: NewRun) -> None:
    folder = new_run()
    journal = JournalWriter(folder)
    journal.log_metrics(1, {"train/loss": 1.0})
    journal.close()
    folder.journal.write_bytes(folder.journal.read_bytes().rstrip(b"\n"))
    journal = JournalWriter(folder)
    journal.log_metrics(1, {"train/loss": 1.0})
    journal.log_metrics(2, {"train/loss": 2.0})
    journal.close()
    assert [record["step"] for record in read_records(folder.journal)] == [1, 2]


def test_a_resume_repeats_no_step_of_a_metric(new_run: NewRun) -> None:
    folder = new_run()
    journal = JournalWriter(folder)
    for step in range(1, 251):
        journal.log_metrics(step, {"train/loss": 1 / step})
    journal.log_metrics(200, {"eval/loss": 0.5})
    journal.close()
    resumed = JournalWriter(folder)
    assert resumed.last_step("train/") == 250 and resumed.last_step("system/") is None
    for step in range(201, 301):
        resumed.log_metrics(step, {"train/loss": 1 / step})
    # a new metric of an old step is new
    resumed.log_metrics(200, {"eval/loss": 0.5, "eval/distance": 3.0})
    resumed.close()
    history = metric_history(folder)
    assert history["train/loss"].steps.tolist() == list(range(1, 301))
    assert history["eval/loss"].steps.tolist() == [200] and history[
        "eval/distance"
    ].values.tolist() == [3.0]


def test_several_metrics_calls_of_one_step_all_count(new_run: NewRun) -> None:
    journal = JournalWriter(new_run())
    journal.log_metrics(1, {"train/loss": 1.0})
    journal.log_metrics(1, {"train/seconds": 2.0})
    journal.close()
    assert final_values(metric_history(journal.folder)) == {"train/loss": 1.0, "train/seconds": 2.0}


def test_nan_and_infinities_survive(new_run: NewRun) -> None:
    journal = JournalWriter(new_run())
    journal.log_metrics(1, {"nan": math.nan, "high": math.inf, "low": -math.inf})
    journal.close()
    assert b'"NaN"' in journal.path.read_bytes()
    values = final_values(metric_history(journal.folder))
    assert math.isnan(values["nan"]) and (values["high"], values["low"]) == (math.inf, -math.inf)


def test_threads_never_mix_their_lines(new_run: NewRun) -> None:
    journal = JournalWriter(new_run())

    def write(stream: str) -> None:
        for step in range(500):
            journal.log_metrics(step, {f"{stream}/{key}": step for key in "abcdefgh"})

    threads = [
        threading.Thread(target=write, args=(stream,)) for stream in ("train", "eval", "system")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    assert all(
        series.steps.tolist() == list(range(500))
        for series in metric_history(journal.folder).values()
    )
    assert len(metric_history(journal.folder)) == 24


def test_appending_costs_microseconds(new_run: NewRun) -> None:
    journal = JournalWriter(new_run())
    values = {f"train/metric_{index}": 0.1 * index for index in range(8)}
    times = []
    for step in range(2000):
        start = time.perf_counter()
        journal.log_metrics(step, values)
        times.append(time.perf_counter() - start)
    journal.close()
    assert sorted(times)[1000] < 200e-6  # 20 microseconds on a quiet machine


def test_paths_inside_the_run_are_relative(new_run: NewRun, tmp_path: Path) -> None:
    journal = JournalWriter(new_run())
    assert journal.relative_path(journal.folder.media / "a.png") == "media/a.png"
    assert journal.relative_path(tmp_path / "b.png") == str(tmp_path / "b.png")
    journal.close()


def test_time_and_devices_of_all_attempts_are_counted_and_nothing_between_them() -> None:
    facts = JournalFacts()

    def add(kind: str, second: int, **values: str) -> None:
        facts.add(
            {
                "kind": kind,
                "time": 1_000_000 + 1000 * second,
                "values": values,
                "name": "",
                "family": "",
                "status": "running",
                "step": 0,
            }
        )

    add("start", 0)
    add("tags", 0, **{DEVICES_TAG: "2 GPU at 3"})
    add("overview", 1800)  # killed after this
    add("start", 90_000)
    add("tags", 90_000, **{DEVICES_TAG: "1 GPU at 3"})
    add("end", 93_600)
    add("tags", 99_999, x="by an evaluation")
    assert facts.seconds == 5400 and facts.device_hours == {"GPU": 2.0} and facts.price == 6.0
    add("start", 100_000)
    add("tags", 100_000, **{DEVICES_TAG: "4 core"})
    add("overview", 99_000)  # the clock was set back
    facts.count_time(1_000_000 + 1000 * 99_900)
    assert (
        facts.seconds == 6300
        and facts.device_hours == {"GPU": 2.0, "core": 1.0}
        and facts.price == 6.0
    )


def test_training_loss_is_the_median_of_the_last_steps(new_run: NewRun) -> None:
    """Of 1,000 steps the last 20; one batch of another size of loss changes nothing, and NaN is not
    passed over.
    """
    folder = new_run()
    with closing(JournalWriter(folder)) as journal:
        for step in range(1, 1000):
            journal.log_metrics(step, {"train/loss": 1.0 if step <= 980 else 0.5 + step / 1e6})
        journal.log_metrics(1000, {"train/loss": 40.0, "eval/velocity": 0.4})
    home = Home(folder.path.parents[1])
    (row,) = run_rows(home, [read_record(folder)]).rows
    assert row["step"] == 1000 and row["train_loss"] == pytest.approx(0.5 + 990.5e-6)
    assert final_values(metric_history(folder)) == {
        "train/loss": row["train_loss"],
        "eval/velocity": 0.4,
    }
    with closing(JournalWriter(folder)) as journal:
        journal.log_metrics(1001, {"train/loss": math.nan})
    rows = run_rows(home, [read_record(each) for each in (folder, new_run())]).rows
    assert all(math.isnan(row["train_loss"]) for row in rows)
