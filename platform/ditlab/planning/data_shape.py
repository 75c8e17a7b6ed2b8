"""Sizes that a step takes from its data and not from its spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from denoisers.contract import ANY, TextCodec
from ditlab.spec.experiment import Experiment


@dataclass(frozen=True)
class DataShape:
    """Shapes of batch fields that the data decide, and their text."""

    fields: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shape of one sample by field, padding included; for fields with axes of any size."""
    columns: frozenset[str] | None = None
    """Names of the fields that the data hold; None where they are not here."""
    text: TextCodec | None = None
    """Codec of the data's tokens; None where they hold no text."""

    def of_experiment(self, experiment: Experiment) -> dict[str, tuple[int, ...]]:
        """Return the shape of one sample of every batch field of model and loss.

        Where the data are not known, an axis of any size is what the loss assumes, else as long as `at_most` allows.
        """
        assumed = experiment.objective.assumed_shapes(experiment.model, self.fields)
        shapes, known = {}, {**assumed, **self.fields}
        for each in experiment.batch_fields():
            longest = each.at_most or each.multiple_of
            longest_shape = tuple(longest if size == ANY else size for size in each.shape)
            shapes[each.name] = known.get(each.name, longest_shape)
        return shapes
