"""The plain network of a model section, and its loss of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from benchmarks.plain.dit import HandDiT, flow_matching_loss
from benchmarks.plain.dlm import HandDLM, score_entropy_loss
from benchmarks.plain.region import HandRegionNetwork, masked_error
from benchmarks.plain.unet import HandUNet


def plain_network(model: Any) -> nn.Module:
    """Build the plain network of a spec's `model`, of its sizes. Raises ValueError where there is none."""
    if model.family == "dit" and model.adaln == "scale_shift" and model.num_classes is None and model.mlp_ratio == 4:
        return HandDiT(
            image_size=model.image_size,
            channels=model.channels,
            patch_size=model.patch_size,
            width=model.width,
            depth=model.depth,
            num_heads=model.num_heads,
        )
    if model.family == "unet" and model.num_classes is None:
        return HandUNet(channels=model.channels, width=model.width, time_width=model.time_width)
    if model.family == "dlm" and model.block_size is None:
        return HandDLM(
            vocabulary=model.vocabulary,
            width=model.width,
            depth=model.depth,
            num_heads=model.num_heads,
            mlp_width=model.mlp_width,
            condition_width=model.condition_width,
            time_width=model.time_width,
        )
    if model.family == "region" and model.corruption == "mask":
        return HandRegionNetwork(
            num_features=model.num_features,
            width=model.width,
            depth=model.depth,
            num_heads=model.num_heads,
            mlp_width=model.mlp_width,
            time_width=model.time_width,
            has_positions=model.positions == "sinusoidal",
        )
    raise ValueError(f"model.family={model.family}: there is no plain network of these settings")


def plain_loss(experiment: Any, network: Any, batch: Mapping[str, Tensor]) -> Callable[[], Tensor]:
    """Return the loss of a batch, with times, noise and masks drawn anew at each call. Raises ValueError likewise."""
    objective, family = experiment.objective, experiment.model.family
    if family in ("dit", "unet"):
        return lambda: flow_matching_loss(network, batch["image"])
    if family == "dlm":
        noise = objective.noise
        return lambda: score_entropy_loss(network, batch["tokens"], noise.sigma_min, noise.sigma_max)
    if family == "region":
        return lambda: masked_error(network, batch["regions"], objective.mask_ratio)
    raise ValueError(f"model.family={family}: there is no plain loss of this family")
