"""The plain network of a model section, and its loss of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from benchmarks.plain.dit import HandDiT, flow_matching_loss
from benchmarks.plain.dlm import HandDLM, score_entropy_loss
from benchmarks.plain.pixelhdm import HandFrequencyLoss, HandPixelHDM, velocity_and_frequency_loss
from benchmarks.plain.region import HandRegionNetwork, masked_error
from benchmarks.plain.unet import HandUNet


def plain_network(model: Any) -> nn.Module:
    """Build the plain network of a spec's `model`, of its sizes. Raises ValueError where there is
    none.
    """
    if (
        model.family == "dit"
        and model.adaln == "scale_shift"
        and model.num_classes is None
        and model.mlp_ratio == 4
    ):
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
    frozen_text = (
        model.family == "pixelhdm" and model.text_encoder == "frozen" and model.positions == "mrope"
    )
    if (
        frozen_text
        and model.gate == "headwise"
        and model.pixel_residual == "block"
        and model.mlp_ratio == 3
    ):
        return HandPixelHDM(
            width=model.width,
            pixel_width=model.pixel_width,
            patch_size=model.patch_size,
            patch_depth=model.patch_depth,
            pixel_depth=model.pixel_depth,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            bottleneck_width=model.bottleneck_width,
            time_width=model.time_width,
            rotated=model.mrope_widths,
        )
    raise ValueError(f"model.family={model.family}: there is no plain network of these settings")


def plain_loss(experiment: Any, network: Any, batch: Mapping[str, Tensor]) -> Callable[[], Tensor]:
    """Return the loss of a batch, with times, noise and masks drawn anew at each call. Raises
    ValueError likewise.
    """
    objective, family = experiment.objective, experiment.model.family
    if family in ("dit", "unet"):
        return lambda: flow_matching_loss(network, batch["image"])
    if family == "dlm":
        noise = objective.noise
        return lambda: score_entropy_loss(
            network, batch["tokens"], noise.sigma_min, noise.sigma_max
        )
    if family == "region":
        return lambda: masked_error(network, batch["regions"], objective.mask_ratio)
    if family == "pixelhdm":
        names = ("image", "text", "text_mask", "text_pooled")
        image, text, text_mask, pooled = (batch[name] for name in names)
        frequency = HandFrequencyLoss()
        return lambda: velocity_and_frequency_loss(
            network, image, text, text_mask, pooled, frequency
        )
    raise ValueError(f"model.family={family}: there is no plain loss of this family")
