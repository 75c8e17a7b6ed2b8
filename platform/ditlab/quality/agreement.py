"""Caption agreement: share of samples that show the classes that their captions name.

A classifier for each column of classes recognises the sample's class; the expected one is that of the row whose caption
the sample was drawn from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from denoisers.figures import Figure, Heatmap
from ditlab.data.stores.view import View
from ditlab.quality.classifier import TrainedClassifier
from ditlab.quality.features import apply_batched
from ditlab.quality.images import LARGEST_REFERENCE, ImageFields, image_batches
from ditlab.quality.names import AGREEMENT, AGREEMENT_CHANCE, AGREEMENT_REAL, agreement_of

Classes = Mapping[str, Tensor]
"""Class indices of some images by column, int64 (num,) each."""


@dataclass(frozen=True)
class CaptionAgreement:
    """Classifiers of a data set's images, one a column of classes, and their accuracy on real images."""

    classifiers: Mapping[str, TrainedClassifier]
    """Classifiers by column."""
    real: float
    """Share of held-out images of which they recognise all classes."""
    tick: Callable[[], None]
    """Called after each batch."""

    @classmethod
    def open(
        cls,
        classifiers: Mapping[str, TrainedClassifier],
        fields: Sequence[ImageFields],
        held_out: View,
        device: torch.device,
        tick: Callable[[], None],
    ) -> "CaptionAgreement":
        """Measure the classifiers on at most 5,000 held-out images; `fields` are of the same columns."""
        images = list(image_batches(held_out, fields[0].image, device, LARGEST_REFERENCE))
        seen = _recognised(classifiers, images, tick)
        rows = np.arange(min(len(held_out), LARGEST_REFERENCE))
        return cls(classifiers, _all_right(classes_of(held_out, fields, rows), seen), tick)

    def recognise(self, images: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the classes of images given in batches, on the CPU."""
        return _recognised(self.classifiers, images, self.tick)

    def metrics(self, expected: Classes, recognised: Classes) -> dict[str, float]:
        """Return the metrics of `names.agreement_names` from the expected and the recognised classes."""
        return {
            AGREEMENT: _all_right(expected, recognised),
            **{agreement_of(name): _share(expected[name] == recognised[name]) for name in self.classifiers},
            AGREEMENT_REAL: self.real,
            AGREEMENT_CHANCE: prod(trained.chance for trained in self.classifiers.values()),
        }


def classes_of(view: View, fields: Sequence[ImageFields], indices: np.ndarray) -> dict[str, Tensor]:
    """Return the classes of a view's rows at `indices`."""
    names = [each.label.name for each in fields]
    return {name: view.gather(name, indices).long() for name in names}


def confusion_figure(expected: Classes, recognised: Classes, names: Mapping[str, Sequence[str]]) -> Figure:
    """Draw the confusion matrix of each column: the expected class against the recognised one.

    `names` are those of the classes by column, as many as there are classes. A class that no caption named stays blank.
    """
    panels, agreements = [], []
    for column, classes in names.items():
        counts = np.zeros((len(classes), len(classes)))
        np.add.at(counts, (expected[column].numpy(), recognised[column].numpy()), 1)
        with np.errstate(invalid="ignore"):
            shares = counts / counts.sum(1, keepdims=True)
        right = _share(expected[column] == recognised[column])
        agreements.append(f"{column}: {right:.1%} of {len(expected[column])} samples agree")
        panels.append(
            Heatmap(
                shares, title=agreements[-1], x_label="recognised",
                y_label="expected", limits=(0.0, 1.0), x_names=classes, y_names=classes,
            )
        )  # fmt: skip
    alt = (
        "Confusion matrices, expected class by recognised class; shares on the diagonal are of samples that show what "
        f"their captions name. {'; '.join(agreements)}."
    )
    return Figure(panels, title="Caption agreement: share of the samples of each expected class", alt=alt)


def _recognised(
    classifiers: Mapping[str, TrainedClassifier], images: Sequence[Tensor], tick: Callable[[], None]
) -> dict[str, Tensor]:
    return {name: apply_batched(each.network, images, tick).argmax(1).cpu() for name, each in classifiers.items()}


def _all_right(expected: Classes, recognised: Classes) -> float:
    """Return the share of samples whose classes are right in every column."""
    return _share(torch.stack([expected[name] == recognised[name] for name in expected]).all(0))


def _share(right: Tensor) -> float:
    return float(right.double().mean())
