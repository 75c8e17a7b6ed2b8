"""Caption agreement: do samples show what the captions say that they were drawn from?

A classifier for each column of classes says what a sample shows; what it should show are the classes of the row whose
caption it was drawn from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from denoisers.figures import Figure, Heatmap
from ditlab.data.stores.view import View
from ditlab.quality.classifier import Trained
from ditlab.quality.features import through
from ditlab.quality.images import LARGEST_REFERENCE, ImageFields, image_batches
from ditlab.quality.names import AGREEMENT, AGREEMENT_CHANCE, AGREEMENT_REAL, agreement_of

Classes = Mapping[str, Tensor]
"""Of some images: class indices by column, int64 (num,) each."""


@dataclass(frozen=True)
class Judge:
    """The classifiers of a data set's images, one a column of classes, and how far they can be trusted."""

    classifiers: Mapping[str, Trained]
    """By column."""
    real: float
    """Share of held-out images of which they name all classes."""
    beat: Callable[[], None]

    @classmethod
    def open(
        cls,
        classifiers: Mapping[str, Trained],
        fields: Sequence[ImageFields],
        held_out: View,
        device: torch.device,
        beat: Callable[[], None],
    ) -> "Judge":
        """`fields` and `classifiers` are of the same columns. At most 5,000 held-out images are looked at."""
        images = list(image_batches(held_out, fields[0].image, device, LARGEST_REFERENCE))
        seen = _recognised(classifiers, images, beat)
        rows = np.arange(min(len(held_out), LARGEST_REFERENCE))
        return cls(classifiers, _all_right(classes_of(held_out, fields, rows), seen), beat)

    def recognise(self, images: Sequence[Tensor]) -> dict[str, Tensor]:
        """What images, given in batches, show: `Classes` on the CPU."""
        return _recognised(self.classifiers, images, self.beat)

    def metrics(self, asked: Classes, recognised: Classes) -> dict[str, float]:
        """The figures of `names.agreement_names` for samples of which `asked` was asked."""
        return {
            AGREEMENT: _all_right(asked, recognised),
            **{agreement_of(name): _share(asked[name] == recognised[name]) for name in self.classifiers},
            AGREEMENT_REAL: self.real,
            AGREEMENT_CHANCE: prod(trained.chance for trained in self.classifiers.values()),
        }


def classes_of(view: View, fields: Sequence[ImageFields], indices: np.ndarray) -> dict[str, Tensor]:
    """The classes of a view's rows at `indices`."""
    names = [each.label.name for each in fields]
    return {name: view.gather(name, indices).long() for name in names}


def confusion_figure(asked: Classes, recognised: Classes, names: Mapping[str, Sequence[str]]) -> Figure:
    """For each column, how often samples of which one class was asked are taken for another.

    `names`: of the classes by column, as many as there are classes. A class that was asked of no sample stays blank.
    """
    panels = []
    for column, classes in names.items():
        counts = np.zeros((len(classes), len(classes)))
        np.add.at(counts, (asked[column].numpy(), recognised[column].numpy()), 1)
        with np.errstate(invalid="ignore"):
            shares = counts / counts.sum(1, keepdims=True)
        right = _share(asked[column] == recognised[column])
        panels.append(
            Heatmap(
                shares, title=f"{column}: {right:.1%} of {len(asked[column])} samples agree", x_label="recognised",
                y_label="asked for", limits=(0.0, 1.0), x_names=classes, y_names=classes,
            )
        )  # fmt: skip
    return Figure(panels, title="Caption agreement: share of the samples of which a class was asked")


def _recognised(
    classifiers: Mapping[str, Trained], images: Sequence[Tensor], beat: Callable[[], None]
) -> dict[str, Tensor]:
    return {name: through(each.network, images, beat).argmax(1).cpu() for name, each in classifiers.items()}


def _all_right(asked: Classes, recognised: Classes) -> float:
    return _share(torch.stack([asked[name] == recognised[name] for name in asked]).all(0))


def _share(right: Tensor) -> float:
    return float(right.double().mean())
