"""A replay in JSON's types."""

from collections.abc import Sequence
from typing import Any

from ditlab.checking.replay.check import ReplayComparison
from ditlab.checking.replay.layers import layers_of
from ditlab.checking.replay.lines import mean_note
from ditlab.checking.replay.steps import ReplayedStep


def step_record(step: ReplayedStep, texts: Sequence[str]) -> dict[str, Any]:
    """Return a step in JSON's types."""
    execution = step.execution
    return {
        "step": step.step,
        "attempt": execution.attempt or None,
        "workers": execution.workers,
        "halvings": execution.halvings,
        "left_out": execution.left_out,
        "is_variant": step.is_variant,
        "metrics": dict(step.metrics),
        "clipped_norm": step.clipped_norm,
        "update_norm": step.update_norm,
        "digest": f"{step.digest:016x}",
        "rows": step.rows.tolist(),
        "samples": [
            {
                "place": each.place,
                "row": each.row,
                "text": texts[each.place] if each.place < len(texts) else "",
                "loss": each.loss,
                "components": each.components,
                "time": each.time,
                "draws": {draw.name: draw.value for draw in each.draws},
            }
            for each in step.samples
        ],
        "loss_is_mean_of_samples": not mean_note(step) if step.samples else None,
        "layers": [
            {
                "layer": each.layer,
                "gradient_norm": each.gradient,
                "update_norm": each.update,
                "weight_norm": each.weight,
                "update_over_weight": each.ratio,
            }
            for each in layers_of(step.norms or {})
        ],
    }


def comparison_record(each: ReplayComparison) -> dict[str, Any]:
    """Return a comparison in JSON's types; digests as hexadecimal text."""
    is_digest = each.quantity == "samples"
    recorded, replayed = (
        (f"{value:016x}" if is_digest and value is not None else value) for value in (each.recorded, each.replayed)
    )
    return {
        "step": each.step,
        "attempt": each.attempt or None,
        "quantity": each.quantity,
        "source": each.source,
        "recorded": recorded,
        "replayed": replayed,
        "distance": each.distance,
        "bound": each.bound,
        "holds": each.holds,
    }
