"""Further figures of drawn samples, which add-ons and other packages bring: their contract, and
those that apply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor

from ditlab.data.splits import DataSplits
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.parts import OF_ADDONS, absent_part, load_part, named
from ditlab.progress import ignore
from ditlab.spec.experiment import Experiment


@dataclass(frozen=True)
class ComparedSamples:
    """Drawn samples, and real ones to compare them with."""

    values: Sequence[Tensor]
    """Samples in batches: images (num, channels, height, width), float32 in [-1, 1]; tokens of
    text, (num, length).
    """
    real: Callable[[], Iterable[Tensor]]
    """Gives real samples of the same form: the training images of this size (at most 60,000); of
    text as many held-out rows as were drawn, cut to the same length."""
    real_key: str
    """Digest that is equal where real samples are equal."""
    device: torch.device
    captions: Sequence[str] = ()
    """Caption that each image was drawn from; empty for samples without captions."""
    tick: Callable[[], None] = ignore
    """To be called all along a measurement."""
    warn: Callable[[str], None] = ignore
    """Receives warnings."""


class QualityFigures(ABC):
    """Figures of an experiment's samples, by one network or formula. Nothing is read before it is
    used.
    """

    @classmethod
    @abstractmethod
    def of(
        cls, experiment: Experiment, data: DataSplits, home: Home | None
    ) -> Sequence[QualityFigures]:
        """Return the figures of an experiment that draws images or text; none where they do not
        apply.

        `home` None: that of DITLAB_HOME.
        """

    def shape_problem(self, shape: tuple[int, ...]) -> str:
        """Return a clause on why images (channels, height, width) cannot be measured; "" where they
        can.
        """
        return ""

    def check(self) -> None:  # noqa: B027, one that needs no files has nothing to check
        """Raise UserError for settings and files that cannot be used."""

    @abstractmethod
    def names(self, has_captions: bool = False) -> tuple[str, ...]:
        """Return the names of the metrics, `quality/...`; `has_captions`: samples are drawn from
        captions.
        """

    @abstractmethod
    def measure(self, samples: ComparedSamples) -> dict[str, float]:
        """Return the metrics of `names`. Raises UserError for samples that cannot be measured."""

    @abstractmethod
    def digest(self) -> str:
        """Return a digest of all that decides the figures beside the samples: a part of the
        measurement's protocol.
        """


def find_figures(
    experiment: Experiment, data: DataSplits, home: Home | None
) -> tuple[QualityFigures, ...]:
    """Return the further figures of an experiment's samples; `home` None: that of DITLAB_HOME.

    Raises UserError where a field asks for figures of an add-on that is not here, and for code that
    cannot be used.
    """
    for field in OF_ADDONS["field"]:
        reason = absent_part("field", field)
        if reason and attrgetter(field)(experiment):
            raise UserError(reason)
    found: list[QualityFigures] = []
    for name, target in named("quality_figures").items():
        kind = load_part("quality figures", name, target)
        found += kind.of(experiment, data, home)
    return tuple(found)
