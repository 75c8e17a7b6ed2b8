"""Replay of a run as people ask for it: steps, their check, the worst of a run, a step under another spec."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from denoisers.figures import Figure
from ditlab.analysis.opened_run import OpenedRun
from ditlab.analysis.plot import Plot
from ditlab.analysis.user_errors import output_folder
from ditlab.checking.replay.check import check_replay
from ditlab.checking.replay.lines import check_lines, fold, heading_lines, step_lines, variant_lines
from ditlab.checking.replay.opening import ReplaySource, open_source, targets_of
from ditlab.checking.replay.picture import step_figure
from ditlab.checking.replay.records import comparison_record, step_record
from ditlab.checking.replay.replaying import ReplayedSteps, replay_executions
from ditlab.checking.replay.what_if import replay_changed
from ditlab.checking.replay.worst import explain, step_history, worst_steps
from ditlab.data.preview import row_texts
from ditlab.errors import UserError


@dataclass(frozen=True)
class ReplayReport:
    """Lines, JSON and pictures of a replay."""

    lines: list[str]
    """At most 80 columns each."""
    record: dict[str, Any]
    """The same in JSON's types, with all samples."""
    figures: Mapping[str, Figure] = field(default_factory=dict, repr=False)
    """Pictures by file name, without suffix."""
    holds: bool = True
    """False where a check found something off."""

    def save(self, folder: str | Path) -> list[Path]:
        """Write the pictures as PNG; return their paths. Raises UserError where the disk refuses."""
        place = output_folder(Path(folder))
        return [Plot(figure).save(place / f"{name}.png") for name, figure in self.figures.items()]

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True)
class ReplayRequest:
    """Choice of the steps of a run that are replayed, and how."""

    step: int | None = None
    """First step, from 1; None only with `worst`."""
    to: int | None = None
    """Last step; None: the first one alone."""
    check: bool = False
    """Compare with journal and receipts, instead of showing each sample."""
    worst: int | None = None
    """Number of steps with the largest losses or norms that are replayed and explained."""
    changes: tuple[str, ...] = ()
    """Overrides (`training.clip.max_norm=0.5`) under which the step is done once more."""
    anyway: bool = False
    """Go on with other code, data or device than the run's."""

    def check_options(self) -> None:
        """Raise UserError for options that exclude each other."""
        asked = [
            name for name, given in (("--check", self.check), ("--worst", self.worst), ("--set", self.changes)) if given
        ]
        if len(asked) > 1:
            raise UserError(f"{asked[0]} and {asked[1]} exclude each other; give one of them.")
        if self.worst and (self.step is not None or self.to is not None):
            raise UserError("--worst finds its steps itself; leave --step and --to out.")
        if self.step is None and not self.worst:
            raise UserError("nothing says which step to replay; give --step N, or --worst K.")
        if self.changes and self.to not in (None, self.step):
            raise UserError(f"--set replays a single step, and --to {self.to} names more; leave --to out.")


def replay_run(run: OpenedRun, request: ReplayRequest) -> ReplayReport:
    """Replay what is asked for, without writing anything into the run. Raises as `replay_steps` does."""
    request.check_options()
    source = open_source(run, request.anyway)
    if request.worst:
        return _worst(source, request.worst)
    assert request.step is not None
    last = request.to if request.to is not None else request.step
    if request.check:
        check = check_replay(source, request.step, last)
        record = _record(check.replayed, {})
        record |= {
            "holds": check.holds,
            "bound": check.tolerance.relative,
            "bound_reason": check.tolerance.reason,
            "comparisons": [comparison_record(each) for each in check.comparisons],
            "unchecked": list(check.unchecked),
        }
        return ReplayReport([*heading_lines(check.replayed), *check_lines(check)], record, holds=check.holds)
    if request.changes:
        found = replay_changed(source, request.step, request.changes)
        return _shown(source, found, variant_lines(found.steps, request.changes), {"changes": list(request.changes)})
    source.check_steps(request.step, last)
    found = replay_executions(source, targets_of(source, request.step, last), range(request.step, last + 1))
    return _shown(source, found, [], {})


def _worst(source: ReplaySource, num: int) -> ReplayReport:
    history = step_history(source)
    steps = worst_steps(history, num)
    found = replay_executions(source, [source.course.final(step) for step in sorted(steps)], steps)
    by_step = {step.step: step for step in found.steps}
    sentences = [explain(by_step[step], history) for step in steps]
    title = f"the {len(steps)} steps whose loss or norm stands out most against the 16 steps on each side:"
    lines = ["", *fold(title), *(line for text in sentences for line in fold(text, "  "))]
    return _shown(source, found, lines, {"worst": steps, "explanations": sentences})


def _shown(
    source: ReplaySource, found: ReplayedSteps, first_lines: Sequence[str], extra: Mapping[str, Any]
) -> ReplayReport:
    """Return a report that shows each step sample by sample."""
    view, lines, figures = source.data.train, [*heading_lines(found), *first_lines], {}
    texts: dict[int, list[str]] = {}
    for step in found.steps:
        texts[step.step] = row_texts(view, step.indices, source.data.text)
        lines += step_lines(step, texts[step.step])
        name = f"step-{step.step:08d}{'-changed' if step.is_variant else ''}"
        if (figure := step_figure(view, step, texts[step.step])) is not None:
            figures[name] = figure
    return ReplayReport(lines, _record(found, texts) | dict(extra), figures)


def _record(found: ReplayedSteps, texts: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    return {
        "run_id": found.run_id,
        "name": found.name,
        "origins": list(found.origins),
        "remarks": list(found.remarks),
        "steps": [step_record(step, texts.get(step.step, ())) for step in found.steps],
    }
