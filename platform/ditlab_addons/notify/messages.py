"""Messages about events of runs and sweeps: title, text and fields, as the receivers get them."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ditlab.home import RunFolder
from ditlab.reports.formatting import format_clock
from ditlab.secrets import hide
from ditlab.storage.plain_files import MIB
from ditlab.tracking.history import RunResults
from ditlab.tracking.journal import all_metrics, main_metric, read_lines
from ditlab.tracking.notes import against, baselines, number
from ditlab.tracking.records import read_record
from ditlab_addons.notify.section import NotifyEvent

if TYPE_CHECKING:  # they import ray and torch, which a run on one machine and `ditlab runs` need not
    from ditlab.sweeps.progress import SweepTrials
    from ditlab.sweeps.start import StartedSweep
    from ditlab.training.reporting import TrainingProgress

_LARGEST_PICTURE = 2 * MIB
_TITLES: dict[NotifyEvent, str] = {"best": "better than before", "lost": "lost a worker"}


class ResultReader:
    """Results of a run's evaluations from its journal, of which each `read` reads what is new."""

    def __init__(self, folder: RunFolder) -> None:
        self.results = RunResults()
        self._journal = folder.journal
        self._end = 0

    def read(self) -> RunResults:
        """Read on; a journal that is not there, or cannot be read, has nothing new."""
        with suppress(OSError):
            for line in read_lines(self._journal, self._end):
                self._end = line.end
                if line.record and line.record["kind"] == "metrics":
                    self.results.add_step(line.record["step"], dict(all_metrics(line.record)), line.record["time"])
        return self.results


def run_message(
    folder: RunFolder, event: NotifyEvent, results: RunResults, reason: str = "",
    progress: TrainingProgress | None = None, is_gone: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Make the message about an event of a run; `is_gone`: the process that led it is.

    Raises UserError where the run's record cannot be read.
    """
    record = read_record(folder)
    result, facts = _result_of(folder, results)
    step = max([record.step, progress.step if progress else 0, *(span.last.step for span in results.values())])
    left = progress.seconds_left if progress and event == "best" else None
    remaining = "" if left is None else f", {format_clock(left)} left"
    lines = [f"step {step:,} of {record.total_steps:,}{remaining}", result, reason]
    following = {
        "failed": folder.resume_command,
        "best": f"ditlab watch {folder.run_id}",
        "lost": folder.resume_command if is_gone else f"ditlab runs log {folder.run_id} --follow",
    }
    facts |= {"step": step, "total_steps": record.total_steps, "seconds_left": left}
    title = "lost" if is_gone else _TITLES.get(event, event)
    next_command = following.get(event, f"ditlab report {folder.run_id}")
    return _content(folder, event, f"{record.name}: {title}", lines, next_command, facts, _newest_picture(folder))


def sweep_message(started: StartedSweep, trials: SweepTrials, event: NotifyEvent, reason: str) -> dict[str, Any]:
    """Make the message about an event of a sweep: the best trial so far, beside its own beginning."""
    folder, leader = started.folder.folder, trials.leader
    num_trials = max(started.num_trials, len(trials.all))
    lines = [f"{trials.num_ended} of {num_trials} trials have ended"]
    facts: dict[str, Any] = {"trials_ended": trials.num_ended, "trials": num_trials}
    picture = None
    if leader:
        run = started.home.run((leader.members or [leader])[0].run_id)
        metric = started.sweep.metrics[0]
        result, values = _result_of(run, ResultReader(run).read(), metric)
        lines.append(f"best: trial {leader.number} (run {run.run_id}), {result or leader.metrics[metric]}")
        facts |= {"best_run": run.run_id, **values}
        picture = _newest_picture(run)
    following = {"failed": f"ditlab tune --resume {folder.run_id}", "best": f"ditlab runs show {folder.run_id}"}
    title = f"{started.sweep.name}: {'a better trial' if event == 'best' else event}"
    next_command = following.get(event, f"ditlab report {folder.run_id}")
    return _content(folder, event, title, [*lines, reason], next_command, facts, picture)


def _content(
    folder: RunFolder, event: NotifyEvent, title: str, lines: Sequence[str], next_command: str,
    facts: Mapping[str, Any], picture: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """Return the fields that are sent, without secrets: `text` has all, the others are for programs."""
    place = f"run {folder.run_id} on {socket.gethostname()}, DITLAB_HOME={folder.path.parents[1]}"
    samples = f"samples: {picture}" if picture else ""
    text = "\n".join(filter(None, [*lines, samples, place, f"next: {next_command}"]))
    return {
        "event": event, "title": hide(title)[:200], "text": hide(text), "run_id": folder.run_id,
        "next": next_command, "picture": str(picture or ""), **facts,
    }  # fmt: skip


def _result_of(folder: RunFolder, results: RunResults, metric: str = "") -> tuple[str, dict[str, Any]]:
    """Return a clause on a run's main metric, or another, beside what it compares with, and the values as fields."""
    name = metric or main_metric(folder)
    span = results.get(name)
    if not span:
        return "", {}
    clauses = [f"{name} {number(span.last.value)} at step {span.last.step:,}", *against(span)]
    clauses += [f"{word} {number(value)}" for word, value in baselines(name, results).items()]
    values = {"value": span.last.value, "first": span.first.value, "lowest": span.low.value}
    finite = {key: value if math.isfinite(value) else None for key, value in values.items()}
    return "; ".join(clauses), {"metric": name, **finite}


def _newest_picture(folder: RunFolder) -> Path | None:
    """Return a run's newest picture of samples; None where there is none, or it is too large to be sent."""
    found = max(folder.media.glob("samples-*.png"), default=None)
    return found if found and found.stat().st_size <= _LARGEST_PICTURE else None
