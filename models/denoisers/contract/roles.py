"""Roles of parameters, by which an optimiser treats them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import nn

Role = Literal["matrix", "convolution", "input", "head", "embedding", "norm", "bias", "scalar"]
"""Role of a parameter: `matrix` the weight of a linear map from features to features, `convolution` a kernel, `input`
and `head` the weights that read data and write predictions, `embedding` a table or a learned token, `norm` the weights
and biases of norms, `bias` every other bias, `scalar` what is left, such as a temperature."""


@runtime_checkable
class RoledNetwork(Protocol):
    """Network that names the modules whose weights have another role than their class says."""

    def role_modules(self) -> Mapping[Role, Sequence[nn.Module]]:
        """Return modules by the role of their weights, submodules included; biases and norms keep their own."""
        ...
