"""Timeline of a run: attempts as bars, evaluations, checkpoints, failures and recoveries as marks, events as a list."""

from __future__ import annotations

from datetime import UTC, datetime

from ditlab.reports.formatting import format_duration, shorten
from ditlab.reports.parts import Notice, Section, TimeBar, TimeEvent, Timeline, TimeMark
from ditlab.reports.run.curves import num_bad_steps
from ditlab.reports.run.records import ReportedEvent, RunAttempt, RunContent

_MOST_EVENTS = 240
_MOST_MARKS = 400
_MOST_CHARACTERS = 1000
_LISTED = frozenset({"start", "data", "failure", "recovery", "state", "end"})
"""Kinds of events that are listed whenever there are too many to list all."""
_MARKED = frozenset({"evaluation", "checkpoint", "failure", "recovery"})


def timeline_section(run: RunContent) -> Section:
    """When the run was trained, what failed, and how it went on."""
    if not run.attempts:
        return Section("Timeline", [Notice("The journal holds no start of this run.")], "timeline")
    begin = min([run.attempts[0].begin, *(event.time for event in run.events)])
    end = max([*(attempt.end for attempt in run.attempts), *(event.time for event in run.events), begin + 1])
    bars = [_bar(number, attempt, begin, end) for number, attempt in enumerate(run.attempts, start=1)]
    marked = [event for event in run.events if event.kind in _MARKED]
    if len(marked) > _MOST_MARKS:
        marked = [event for event in marked if event.kind in ("failure", "recovery")][:_MOST_MARKS]
    marks = [TimeMark(_place(event.time, begin, end), event.kind, shorten(event.text, 200)) for event in marked]
    listed, left_out = _chosen(run)
    captions = [
        "Bars: attempts. Marks: evaluations below, checkpoints that are kept above, failures and recoveries across."
    ]
    if left_out:
        captions.append(f"{left_out:,} events are not listed; `ditlab runs log` prints all.")
    timeline = Timeline(
        bars, marks, (_moment(begin), _moment(end)), [_listed(event) for event in listed],
        _alternative(run), " ".join(captions),
    )  # fmt: skip
    return Section("Timeline", [timeline], "timeline")


def training_seconds(run: RunContent) -> float:
    """Seconds of all attempts."""
    return sum(max(0, attempt.end - attempt.begin) for attempt in run.attempts) / 1000


def _bar(number: int, attempt: RunAttempt, begin: int, end: int) -> TimeBar:
    left, right = _place(attempt.begin, begin, end), _place(attempt.end, begin, end)
    text = _attempt_text(number, attempt.begin, attempt.end, attempt.status)
    return TimeBar(left, max(right - left, 0.0), attempt.status, text)


def _alternative(run: RunContent) -> str:
    parts = [_attempt_text(number, attempt.begin, attempt.end, attempt.status)
             for number, attempt in enumerate(run.attempts[:20], start=1)]  # fmt: skip
    num_failures = sum(event.kind == "failure" for event in run.events)
    num_recoveries = sum(event.kind == "recovery" for event in run.events)
    parts.append(
        f"{num_failures} failures, {num_recoveries} recoveries, {num_bad_steps(run)} steps with NaN or infinity"
    )
    return f"{len(run.attempts)} attempts: {'; '.join(parts)}."


def _attempt_text(number: int, begin: int, end: int, status: str) -> str:
    return f"attempt {number} from {_moment(begin)}, {format_duration((end - begin) / 1000)}, {status}"


def _chosen(run: RunContent) -> tuple[list[ReportedEvent], int]:
    """Events that are listed: all, or those of failures and attempts with the last others; and how many are not."""
    events = list(run.events)
    if len(events) <= _MOST_EVENTS:
        return events, 0
    important = [event for event in events if event.kind in _LISTED]
    if len(important) > _MOST_EVENTS:
        half = _MOST_EVENTS // 2
        chosen = [*important[:half], *important[-half:]]
    else:
        others = [event for event in events if event.kind not in _LISTED][len(important) - _MOST_EVENTS :]
        chosen = sorted([*important, *others], key=lambda event: event.time)
    return chosen, len(events) - len(chosen)


def _listed(event: ReportedEvent) -> TimeEvent:
    iso = _when(event.time).isoformat(timespec="seconds")
    return TimeEvent(_moment(event.time), iso, event.kind, shorten(event.text, _MOST_CHARACTERS))


def _place(time: int, begin: int, end: int) -> float:
    return min(max(100 * (time - begin) / (end - begin), 0.0), 100.0)


def _when(time: int) -> datetime:
    try:
        return datetime.fromtimestamp(time / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # a record of the year 60,000
        return datetime.max.replace(tzinfo=UTC)


def _moment(time: int) -> str:
    return f"{_when(time):%Y-%m-%d %H:%M:%S} UTC"
