"""Parts of a run in MLflow for people, from its journal: note, figures in the list of runs, weights
as a model.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from ditlab.secrets import hide
from ditlab.tracking.history import MAIN_TAG, SPEED
from ditlab.tracking.journal import RESULT_PREFIXES
from ditlab.tracking.mlflow_backend import WEIGHTS_NAME, weights_step
from ditlab.tracking.names import as_count
from ditlab.tracking.notes import RunNote, baselines, number, untrained
from ditlab.tracking.records import UnreadableRecord, read_record
from ditlab.tracking.tracker import EndStatus, RunTracker

STATUS_TAG = "ditlab.status"
"""Tag with a run's status in our words: MLflow has one word for runs that ended and those that a
sweep stopped.
"""

BASELINE_TAG = "ditlab.baseline"
"""Tag with what the main metric compares with: the untrained network, and baselines that were
measured.
"""


def renew_note(tracker: RunTracker, message: str = "", status: EndStatus | None = None) -> None:
    """Write the run's note again, not over a person's, and its cost so far; `status` is how the run
    ends, `message` why it failed."""
    journal = tracker.journal
    journal.log_cost()
    try:
        record = read_record(tracker.folder)
        step = record.step
        total = record.total_steps
    except UnreadableRecord:
        step = total = 0
    step = max([step, *(span.last.step for span in journal.results.values())])
    facts = journal.facts
    if status:
        facts = replace(facts, status=status)
    note = RunNote(tracker.folder.run_id, facts, journal.results, step, max(total, step), message)
    tracker.log_note(note.text())


def end_run(tracker: RunTracker, status: EndStatus, message: str = "") -> None:
    """Log the end of a training run: its status as a column of MLflow's list, its note, its end."""
    tracker.set_tags({STATUS_TAG: status})
    renew_note(tracker, message, status)
    tracker.end(status)


def renew_review(tracker: RunTracker, step: int) -> None:
    """Renew a run's note, and its model's metrics where its weights of this step were exported,
    after an evaluation.
    """
    exported = tracker.folder.media / "export"
    if weights_step(exported / WEIGHTS_NAME) == step:
        log_model(tracker, step, exported)
    renew_note(tracker)


def log_overview(tracker: RunTracker, step: int) -> None:
    """Log the run's figures for MLflow's list of runs: those of four digits, and what its main
    metric compares with.
    """
    facts = tracker.journal.facts
    results = tracker.journal.results
    values: dict[str, float] = {}
    name = facts.tags.get(MAIN_TAG, "")
    main = results.get(name)
    if main:
        values[f"best/{name}"] = float(number(main.low.value))
        known = [f"{word} {number(value)}" for word, value in baselines(name, results).items()]
        first = untrained(main)
        if first:
            known.insert(0, f"untrained {first}")
        text = ", ".join(known)
        if text and facts.tags.get(BASELINE_TAG) != text:
            tracker.set_tags({BASELINE_TAG: text})
    speed = results.get(SPEED)
    if speed:
        values["run/speed"] = float(number(speed.last.value))
    total = as_count(facts.params.get("parameters.total", ""))
    if total is not None and "run/parameters" not in facts.overview_steps:
        values["run/parameters"] = float(total)
    tracker.journal.log_overview(step, values)


def log_model(tracker: RunTracker, step: int, folder: Path) -> None:
    """Log the weights of a step, exported into a folder of the run, as a model, with the results of
    that step.
    """
    journal = tracker.journal
    facts = tracker.journal.facts
    points = [
        {"name": name, "value": span.last.value, "time": span.last.time, "step": step}
        for name, span in journal.results.items()
        if name.startswith(RESULT_PREFIXES)
        and span.last.step == step
        and math.isfinite(span.last.value)
    ]
    kept = ("model.family", "parameters.total", "spec_hash", "training.precision")
    known = facts.current_params
    params = {key: hide(known[key]) for key in kept if key in known}
    fields = {}
    if facts.dataset:
        fields["dataset"] = {key: facts.dataset[key] for key in ("name", "fingerprint")}
    path = journal.relative_path(folder)
    journal.append(
        "model",
        step=step,
        name=facts.params.get("name", facts.name),
        path=path,
        params=params,
        points=points,
        **fields,
    )
