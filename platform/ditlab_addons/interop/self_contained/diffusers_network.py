"""The network as a model of diffusers (behind the content of module.py, in one file)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config

from ditlab_addons.interop.self_contained.module import build_network, draw


class TrainedNetwork(ModelMixin, ConfigMixin):
    """A network that DiTLab trained; `trained` is what its sampler needs (`Config`)."""

    config_name = "config.json"

    @register_to_config
    def __init__(self, trained: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = build_network(trained)

    def forward(self, *inputs: Any) -> Any:
        """Predict as the network itself."""
        return self.network(*inputs)

    def draw(self, num: int, **options: Any) -> Any:
        """Draw samples; `options` are those of the function `draw`."""
        return draw(self.network, self.config.trained, num, **options)
