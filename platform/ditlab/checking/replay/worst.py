"""Steps of a run with the largest losses or gradient norms against their neighbours, and what is behind each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ditlab.checking.replay.observed_stepper import SampleLoss
from ditlab.checking.replay.opening import ReplaySource
from ditlab.checking.replay.steps import ReplayedStep
from ditlab.errors import UserError

NEIGHBOURS = 16
"""Steps on each side whose median a step is compared with."""
HALF = 0.5
"""Part of the loss that the samples named as its carriers have together."""


@dataclass(frozen=True)
class StepHistory:
    """Losses and norms of a run by step, as the last doing of each step had them."""

    steps: np.ndarray
    """int64, ascending."""
    losses: np.ndarray
    """float64."""
    norms: np.ndarray
    """float64, before clipping; NaN where none was recorded."""

    def around(self, values: np.ndarray, step: int) -> float:
        """Return the median of finite values of a step's neighbours, without its own; NaN where there are none."""
        place = int(np.searchsorted(self.steps, step))
        low, high = max(0, place - NEIGHBOURS), place + NEIGHBOURS + 1
        near = np.concatenate([values[low:place], values[place + 1 : high]])
        near = near[np.isfinite(near)]
        return float(np.median(near)) if len(near) else math.nan

    def ratio(self, values: np.ndarray, step: int) -> float:
        """Return a step's value over the median of its neighbours'; infinite where the value is not finite."""
        value, median = float(values[int(np.searchsorted(self.steps, step))]), self.around(values, step)
        if not math.isfinite(value):
            return math.inf
        return value / median if math.isfinite(median) and median > 0 else 1.0


def step_history(source: ReplaySource) -> StepHistory:
    """Return losses and norms from the receipts, else from the journal. Raises UserError where neither has any."""
    done = map(source.course.final, _recorded_steps(source))
    recorded = [each for each in done if each.loss is not None and not each.left_out]
    if recorded:
        rows = [(each.step, each.loss, each.norm) for each in recorded]
        table = np.array(rows, np.float64)
        return StepHistory(table[:, 0].astype(np.int64), table[:, 1], table[:, 2])
    logged = [each for step, each in source.journaled.items() if step > source.course.first]
    if not logged:
        raise UserError(f"run {source.run.folder.run_id} has recorded no loss yet; wait for its first step.")
    return StepHistory(
        np.array([each.step for each in logged], np.int64),
        np.array([each.loss for each in logged]),
        np.array([math.nan if each.norm is None else each.norm for each in logged]),
    )


def _recorded_steps(source: ReplaySource) -> list[int]:
    return sorted({each.step for each in source.course.executions if each.is_recorded})


def worst_steps(history: StepHistory, num: int) -> list[int]:
    """Return the steps whose loss or norm stands out most against its neighbours' median, the worst first."""
    scores = [
        (max(history.ratio(history.losses, step), history.ratio(history.norms, step)), -int(step))
        for step in history.steps.tolist()
    ]
    return [-step for _, step in sorted(scores, reverse=True)[:num]]


def explain(step: ReplayedStep, history: StepHistory) -> str:
    """Return a sentence on what is behind a step's loss and norm."""
    parts = [
        _against("loss", step.loss, history, history.losses, step.step),
        _against("norm", step.norm, history, history.norms, step.step),
    ]
    if step.clip_factor > 1 and step.norm is not None:
        parts[1] += f", clipped to {step.clipped_norm:.4g}"
    if (lr := step.metrics.get("train/lr")) is not None:
        parts.append(f"learning rate {lr:.3g}")
    return f"step {step.step:,}: {'; '.join(parts)}; {carriers(step)}."


def _against(name: str, value: float | None, history: StepHistory, values: np.ndarray, step: int) -> str:
    if value is None:
        return f"no {name}"
    if not math.isfinite(value):
        return f"{name} {value}, not finite"
    median = history.around(values, step)
    if not math.isfinite(median) or median == 0:
        return f"{name} {value:.4g}"
    return f"{name} {value:.4g}, {value / median:.3g} times its neighbours' median"


def carriers(step: ReplayedStep) -> str:
    """Return a clause on the samples that carry a step's loss, and at which times."""
    samples = step.samples
    if not samples:
        return "its samples were not measured"
    bad = [each for each in samples if not math.isfinite(each.loss)]
    if bad:
        return f"{len(bad)} of {len(samples)} samples have no finite loss: {_listed(bad)}"
    losses = np.array([sample.loss for sample in samples])
    order = np.argsort(-losses, kind="stable")
    total = losses.sum()
    if total <= 0:
        return f"the largest loss of its {len(samples)} samples is {_listed([samples[order[0]]])}"
    num = int(np.searchsorted(np.cumsum(losses[order]), HALF * total)) + 1
    if num <= max(1, len(samples) // 8):
        few = [samples[place] for place in order[:num]]
        verb = "carry" if num > 1 else "carries"
        return f"{num} of {len(samples)} samples {verb} half of the loss: {_listed(few)}"
    top = samples[order[0]]
    return f"no few samples carry it: the largest of {len(samples)} has {top.loss / total:.0%}, {_listed([top])}"


def _listed(samples: Sequence[SampleLoss]) -> str:
    shown = ", ".join(_described(sample) for sample in samples[:3])
    return shown + (f" and {len(samples) - 3} more" if len(samples) > 3 else "")


def _described(sample: SampleLoss) -> str:
    time = "" if sample.time is None else f", time {sample.time:.3g}"
    return f"row {sample.row:,} (loss {sample.loss:.4g}{time})"
