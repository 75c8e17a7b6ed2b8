"""The network as a model of diffusers; in a folder it stands behind the content of module.py."""

from __future__ import annotations

from typing import Any

from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config

MODEL: Any = None
build_network: Any = None
draw: Any = None
# The definitions above stand for those of a run.


class TrainedNetwork(ModelMixin, ConfigMixin):
    """A network that DiTLab trained."""

    config_name = "config.json"

    @register_to_config
    def __init__(self) -> None:
        super().__init__()
        self.network = build_network(MODEL)

    def forward(self, *inputs: Any) -> Any:
        """Predict as the network itself."""
        return self.network(*inputs)

    def draw(self, num: int, **options: Any) -> Any:
        """Draw samples; `options` are those of the function `draw`."""
        return draw(self.network, num, **options)
