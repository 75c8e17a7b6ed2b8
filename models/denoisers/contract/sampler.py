"""A family's sampler, and the samples that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from denoisers.contract.requests import DEFAULT_REQUEST, SampleRequest
from denoisers.contract.rows import RealRows

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from denoisers.figures import Figure


@dataclass(frozen=True)
class Samples:
    """The result of sampling."""

    values: Tensor
    """(num, *sample shape), in the model's own range."""
    conditions: dict[str, Tensor]
    """Conditions of each sample; empty for unconditional samples."""
    trajectory: Tensor | None = None
    """(frames, num, *sample shape), the first frame pure noise, where a trajectory was requested."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Further values for `show`."""


class Sampler(Protocol):
    """Draws samples and shows them."""

    takes_rows: Literal["none", "conditions", "completed"]
    """Use of real rows: none; a source of conditions (captions) where a request names none; rows to complete
    (imputation). Where not `none`, a request holds as many rows as samples."""

    draws_per_prompt: bool
    """True if each prompt of a request gets samples of its own."""

    max_batch_size: int | None
    """Most samples that are drawn in one batch, where each needs much memory; None: no limit."""

    def conditions(self, num: int, request: SampleRequest = DEFAULT_REQUEST) -> dict[str, Tensor]:
        """Return the conditions of `num` samples: the request's, or a spread over all (classes in turn); {} if none
        apply.

        Raises ValueError for a condition that the model does not have.
        """
        ...

    def sample(
        self,
        network: nn.Module,
        conditions: Mapping[str, Tensor],
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
        noise: Tensor | None = None,
    ) -> Samples:
        """Draw `num` samples. Noise is drawn sample by sample, so the first k do not depend on `num`.

        `noise` (num, *sample shape) is the state that sampling begins with (tokens, for a process of tokens), in place
        of one drawn from the generator; all other draws stay the same. Raises ValueError where it does not fit.
        """
        ...

    def show(self, samples: Samples) -> Figure:
        """Return the samples as a figure: an image grid, text, a heatmap."""
        ...


@dataclass(frozen=True)
class Picture:
    """A sample as an image file."""

    pixels: np.ndarray
    """(height, width, 3) uint8."""
    settings: Mapping[str, str]
    """Settings of the sample by name: prompt, seed, solver."""


@runtime_checkable
class PicturingSampler(Sampler, Protocol):
    """A sampler each of whose samples is an image file of its own."""

    size: tuple[int, int]
    """(height, width) in pixels of samples whose request names no size."""

    def pictures(self, samples: Samples) -> Sequence[Picture]:
        """Return one picture per sample."""
        ...


class RowConditionedSampler(Sampler, Protocol):
    """A sampler that `takes_rows` for their conditions."""

    row_fields: Sequence[str]
    """Batch fields of rows that are conditions; `rows.batch` holds these alone."""


class CompletingSampler(Sampler, Protocol):
    """A sampler that `takes_rows` to complete them."""

    def select_rows(self, rows: RealRows) -> np.ndarray | None:
        """Return a mask (num,) bool of the rows to complete; None: all. `rows.batch` is empty here: their other columns
        decide."""
        ...

    def note(self, rows: RealRows) -> str:
        """Return a remark on completing just these rows, without a full stop, or "": the part of the request that lies
        in none of them. `rows.batch` may be empty."""
        ...

    def table(self, samples: Samples, rows: RealRows) -> dict[str, np.ndarray]:
        """Return the completed rows as columns of equal length, for a table file that other tools read."""
        ...
