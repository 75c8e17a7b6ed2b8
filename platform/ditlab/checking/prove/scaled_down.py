"""Scaled-down spec of a large experiment: the same structure, engine and precision, of less batch, width and depth."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from denoisers.parameters import count_parameters
from ditlab.errors import UserError
from ditlab.planning.flops import step_flops
from ditlab.spec.experiment import Experiment

MOST_PARAMETERS = 4_000_000
"""Parameters up to which widths and depths stay: what is compared of each step takes half a second."""
MOST_BATCH_FLOPS, MOST_FLOPS = 2e9, 1e10
"""Floating-point operations of a step up to which the batch stays, and with a batch of a few samples widths and depths:
a proof does some sixty such steps, two seconds and ten on two cores."""
LEAST_WIDTH, LEAST_DEPTH = 16, 2
"""Below which no width and no depth goes."""
MOST_PASSES = 2
"""Micro-batches of a worker that the batch goes down to."""
_WIDTHS, _DEPTHS = ("width", "heads"), ("depth", "block")
"""Last words of the fields that are halved; `objective.alignment_block` is the number of one of `model.patch_depth`."""


@dataclass(frozen=True)
class ScaledDownSpec:
    """Experiment to prove, and what of it was made smaller."""

    experiment: Experiment
    changes: Mapping[str, Any]
    """Fields by dotted path; empty where the experiment itself is small enough."""

    def describe(self) -> str:
        """Return what was made smaller, in words; empty for nothing."""
        changed = ", ".join(f"{path}={value}" for path, value in self.changes.items())
        own = count_parameters(self.experiment.model, self.experiment.objective).total
        text = f"Proved on a scaled-down spec of {own:,} parameters ({changed}), which takes seconds."
        return text if self.changes else ""


def scale_down(experiment: Experiment) -> ScaledDownSpec:
    """Return the experiment itself where it is small; else with batch, widths and depths reduced until it is small.

    Only changes that the spec accepts and that leave the fields of a batch alone are made, so that the same data fit.
    Widths, and then depths, are halved all together first, as the width of a network depends on its heads, a block's
    number on the depth; then each alone.
    """
    found, changes = experiment, dict[str, Any]()

    def accept(tried: Mapping[str, Any]) -> bool:
        nonlocal found
        try:
            smaller = experiment.replace_all({**changes, **tried})
            count_parameters(smaller.model, smaller.objective)
        except (UserError, ValueError, AssertionError, RuntimeError):
            return False
        if smaller.batch_fields() != experiment.batch_fields():
            return False
        found = smaller
        changes.update(tried)
        return True

    def is_small(most_flops: float = MOST_FLOPS) -> bool:
        parameters = count_parameters(found.model, found.objective).total
        return parameters <= MOST_PARAMETERS and step_flops(found).model <= most_flops

    def reduce_batch(samples: int) -> None:
        """Take a batch of few samples with as many workers, that still accumulates where the experiment does."""
        size = min(samples, experiment.micro_size)
        whole = min(MOST_PASSES, experiment.accumulation) * size * experiment.resources.max_workers
        accept({"batch.size": whole} | ({"batch.micro": size} if experiment.batch.micro else {}))

    if not is_small(MOST_BATCH_FLOPS):
        reduce_batch(4)
    spec = experiment.to_dict()
    for names, least in ((_WIDTHS, LEAST_WIDTH), (_DEPTHS, LEAST_DEPTH)):
        fields = {
            f"{section}.{name}": value
            for section in ("model", "objective")
            for name, value in spec[section].items()
            if type(value) is int and name.rpartition("_")[2] in names
        }
        for group in (fields, *([path] for path in fields)):
            while not is_small():
                tried = {}
                for path in group:
                    value = changes.get(path, fields[path])
                    least_here = 1 if path.endswith(("heads", "block")) else least
                    if max(1, value // 2) >= least_here and value > 1:
                        tried[path] = value // 2
                if not tried or not accept(tried):
                    break
    if not is_small():
        reduce_batch(1)
    return ScaledDownSpec(found, changes)
