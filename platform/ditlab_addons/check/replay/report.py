"""Replay of a run as people ask for it: steps sample by sample and layer by layer, or their
check.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from ditlab.data.images.captions import decode_captions
from ditlab.data.stores.row_changes import CAPTION
from ditlab.data.stores.view import View
from ditlab.reports.formatting import facts_table, format_cell, terminal_table
from ditlab_addons.check.replay.check import ReplayCheck
from ditlab_addons.check.replay.replaying import ReplayedSteps, ReplaySource
from ditlab_addons.check.replay.stepper import ReplayedStep, SampleLoss, layers_of
from ditlab_addons.check.report import Report, as_verdict, shown_number
from ditlab_models.contract import TextCodec

LONGEST_TEXT = 60
"""Characters of a row's text that are shown."""
MOST_SAMPLES = 8
"""Samples of a step that the terminal shows, those with the largest losses; JSON has all."""
MOST_COMPARISONS = 40
"""Comparisons that the terminal shows, those that are off first; JSON has all."""
MEAN_TOLERANCE = 1e-3
"""Relative distance of a step's loss from the mean of its samples' from which on it counts as no
mean of them.
"""


@dataclass(frozen=True)
class ReplayReport(Report):
    """Steps that were done again, and what their check found."""

    source: ReplaySource
    replayed: ReplayedSteps
    check: ReplayCheck | None = None

    @property
    def holds(self) -> bool:
        """True if no check found something off."""
        return self.check is None or self.check.holds

    def shown(self) -> Iterator[RenderableType]:
        """Yield the run and its remarks, then the steps one by one, or a table of what was
        compared.
        """
        run = self.source.run
        done = f"{self.source.history.last:,} steps done"
        yield Text(
            f"run {run.folder.run_id} ({run.record.name}), {done}; replayed {self.replayed.origin}"
        )
        yield from map(Text, self.source.remarks)
        if self.check:
            yield from _shown_check(self.check)
            return
        for step in self.replayed.steps:
            yield from _shown_step(step, self._texts(step))

    def to_dict(self) -> dict[str, Any]:
        """Return the report in JSON's types, with all samples."""
        run = self.source.run
        found: dict[str, Any] = {
            "run_id": run.folder.run_id,
            "name": run.record.name,
            "origin": self.replayed.origin,
            "remarks": list(self.source.remarks),
            "steps": [_step_record(step, self._texts(step)) for step in self.replayed.steps],
        }
        if self.check:
            found |= {
                "holds": self.check.holds,
                "bound": self.check.tolerance.relative,
                "bound_reason": self.check.tolerance.reason,
                "unchecked": list(self.check.unchecked),
                "comparisons": [each.to_dict() for each in self.check.comparisons],
            }
        return found

    def _texts(self, step: ReplayedStep) -> Sequence[str]:
        """Return a line about each sample of a step, by place."""
        data = self.source.data
        return _row_texts(data.train, step.indices, data.text)


def _row_texts(view: View, indices: np.ndarray, text: TextCodec | None) -> list[str]:
    """Return a line about each row: its text or caption, its class, its chromosome; empty where it
    has none.
    """
    if not len(indices):
        return []
    parts: list[list[str]] = []
    if text is not None and "tokens" in view.columns:
        tokens = view.padded("tokens", indices).tolist()
        parts.append([repr(text.decode(ids)[:LONGEST_TEXT]) for ids in tokens])
    elif CAPTION in view.columns:
        captions = decode_captions(view.padded(CAPTION, indices).numpy())
        parts.append([repr(caption[:LONGEST_TEXT]) for caption in captions])
    for name, column in view.columns.items():
        if not column.shape:
            values = view.padded(name, indices).tolist()
            if column.num_classes and column.names:
                values = [column.names[int(value)] for value in values]
            parts.append([f"{name} {value}" for value in values])
    return [", ".join(line) for line in zip(*parts, strict=True)] or [""] * len(indices)


def _shown_step(step: ReplayedStep, texts: Sequence[str]) -> Iterator[RenderableType]:
    """Yield a step's numbers, the samples with the largest losses, and its layers."""
    execution = step.execution
    title = f"\nstep {step.step:,} ({execution.workers} worker{'s' * (execution.workers > 1)})"
    if execution.skipped:
        yield Text(
            f"{title}: its batch of {len(step.rows):,} samples was skipped: no loss, no update"
        )
        return
    numbers = {
        name.removeprefix("train/"): shown_number(value) for name, value in step.metrics.items()
    }
    if step.norms:
        numbers["clipped norm"] = shown_number(step.clipped_norm)
        numbers["update norm"] = shown_number(step.update_norm)
    yield facts_table(
        {**numbers, "samples": f"{len(step.rows):,}, digest {step.digest:016x}"}, title
    )
    if not step.samples:
        return
    few = by_loss(step.samples)[:MOST_SAMPLES]
    heads = {
        "place": "number",
        "row": "number",
        "loss": "number",
        "time": "number",
        "sample": "text",
    }
    table = terminal_table(
        heads, title=f"\n{len(few)} of {len(step.samples):,} samples, the largest losses first"
    )
    for each in few:
        time = "" if each.time is None else f"{each.time:.4g}"
        table.add_row(str(each.place), str(each.row), f"{each.loss:.5g}", time, texts[each.place])
    yield table
    if not loss_is_mean(step):
        yield Text(
            "The step's loss is no mean of the samples' by themselves: it weighs or couples them."
        )
    heads = {"layer": "id", "gradient": "number", "update": "number", "update/weight": "number"}
    table = terminal_table(heads, title="\nby layer, norms before clipping")
    for layer, norms in layers_of(step.norms or {}).items():
        table.add_row(layer, *map(format_cell, (norms.gradient, norms.update, norms.ratio)))
    yield table


def by_loss(samples: Sequence[SampleLoss]) -> list[SampleLoss]:
    """Return samples by loss, the largest first and those without a finite one before them."""
    return sorted(
        samples, key=lambda sample: -sample.loss if math.isfinite(sample.loss) else -math.inf
    )


def loss_is_mean(step: ReplayedStep) -> bool:
    """Return True if a step's loss is the mean of its samples', or either is not finite."""
    mean = sum(sample.loss for sample in step.samples) / len(step.samples)
    loss = step.number("loss") or 0.0
    return not abs(mean - loss) > MEAN_TOLERANCE * max(abs(mean), abs(loss))


def _step_record(step: ReplayedStep, texts: Sequence[str]) -> dict[str, Any]:
    """Return a step in JSON's types."""
    execution = step.execution
    return {
        "step": step.step,
        "attempt": execution.attempt or None,
        "workers": execution.workers,
        "microbatch_splits": execution.microbatch_splits,
        "left_out": execution.skipped,
        "metrics": dict(step.metrics),
        "clipped_norm": step.clipped_norm,
        "update_norm": step.update_norm,
        "digest": f"{step.digest:016x}",
        "rows": step.rows.tolist(),
        "samples": [{**vars(each), "text": texts[each.place]} for each in step.samples],
        "loss_is_mean_of_samples": loss_is_mean(step) if step.samples else None,
        "layers": [
            {
                "layer": layer,
                **{f"{name}_norm": norm for name, norm in asdict(each).items()},
                "update_over_weight": each.ratio,
            }
            for layer, each in layers_of(step.norms or {}).items()
        ],
    }


def _shown_check(check: ReplayCheck) -> Iterator[RenderableType]:
    """Yield a table of what was compared, the verdict and what it rests on."""
    kinds = {
        "step": "number",
        "number": "id",
        "of": "id",
        "recorded": "number",
        "replayed": "number",
        "verdict": "id",
    }
    table = terminal_table(kinds)
    for each in sorted(check.comparisons, key=lambda each: each.holds)[:MOST_COMPARISONS]:
        found = each.to_dict()
        numbers = (shown_number(found[name]) for name in ("recorded", "replayed"))
        table.add_row(
            f"{each.step:,}", each.quantity, each.source, *numbers, as_verdict(each.holds)
        )
    yield table
    num_off = sum(not each.holds for each in check.comparisons)
    same = sum(each.distance == 0 for each in check.comparisons)
    yield Text(
        f"{len(check.comparisons):,} numbers compared, {same:,} of the same bits, {num_off:,} "
        f"off; relative bound {check.tolerance.relative:.2g} ({check.tolerance.reason})."
    )
    yield from (Text(f"not compared: {text}") for text in check.unchecked)
