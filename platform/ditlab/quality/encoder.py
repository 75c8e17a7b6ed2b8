"""Features of the image encoder that an experiment names (DINOv3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ditlab.encoders.extractor import DTYPES
from ditlab.encoders.image import FrozenImageEncoder
from ditlab.errors import UserError
from ditlab.quality.features import Extractor
from ditlab.spec.experiment import Experiment


@dataclass(frozen=True)
class ImageEncoder:
    """Location of an image encoder, opened only while images are encoded, to leave the memory to training."""

    place: str
    """A folder, or a name on the Hugging Face hub."""
    dtype: torch.dtype

    @classmethod
    def of(cls, experiment: Experiment) -> ImageEncoder | None:
        """Return the experiment's encoder; None where it names none."""
        spec = experiment.encoders
        return None if spec.image is None else cls(spec.image, DTYPES[spec.precision])

    def check(self, height: int, width: int) -> None:
        """Raise UserError for an encoder that cannot be opened, or whose patches do not tile images of this size."""
        checkpoint = FrozenImageEncoder.check(self.place, None, None)
        patch = checkpoint.config().patch_size
        if height % patch or width % patch:
            raise UserError(
                f"{checkpoint.knob} has patches of {patch} pixels, which do not tile the {height} x {width} pixels of "
                f"samples whose quality is measured; draw sizes that are multiples of {patch}, or name another encoder."
            )

    def features(self, device: torch.device, tick: Callable[[], None]) -> Extractor:
        """Return an extractor of the last layer's features, averaged over an image's patches: (num, width), float32.

        It calls `tick` after each batch.
        """

        def extract(images: Iterable[Tensor]) -> Tensor:
            encoder, means = FrozenImageEncoder.open(self.place, None, None, device, self.dtype), []
            for batch in images:
                means.append(encoder.encode(batch).float().mean(1))
                tick()
            return torch.cat(means)

        return extract
