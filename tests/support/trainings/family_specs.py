"""The smallest experiment of each family that trains on data that come with the platform."""

from ditlab.spec.experiment import class_for

_COMMON = {
    "optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.05},
    "schedule": {"kind": "warmup_cosine", "warmup": 3, "final": 0.1},
    "training": {"steps": 20, "clip": {"kind": "norm", "max_norm": 0.5}, "ema": {"decay": 0.99}},
    "tracking": {"system_metrics": False},
}
PIXELHDM = {
    "family": "pixelhdm",
    "width": 32,
    "pixel_width": 4,
    "patch_size": 4,
    "patch_depth": 1,
    "pixel_depth": 1,
    "num_heads": 4,
    "num_kv_heads": 2,
    "mrope_widths": [4, 2, 2],
    "bottleneck_width": 8,
    "time_width": 8,
    "max_resolution": 16,
    "text_length": 128,
}
"""A small model that reads captions, or their features of 32 numbers a token."""
_FAMILIES = {
    "dit": {
        "model": {
            "family": "dit",
            "image_size": 8,
            "patch_size": 4,
            "width": 16,
            "depth": 1,
            "num_heads": 2,
            "num_classes": 10,
        },
        "objective": {"weights": {"velocity": 1.0, "direction": 0.3}},
        "data": {"kind": "digits"},
        "sampling": {"steps": 2},
    },
    "unet": {
        "model": {
            "family": "unet",
            "image_size": 8,
            "width": 8,
            "time_width": 8,
            "num_classes": 10,
        },
        "data": {"kind": "digits"},
        "sampling": {"steps": 2},
    },
    "region": {
        "model": {
            "family": "region",
            "num_features": 8,
            "num_regions": 8,
            "width": 16,
            "depth": 1,
            "num_heads": 2,
            "time_width": 8,
            "positions": "sinusoidal",
        },
        "data": {"kind": "motifs", "motifs": 7, "regions": 8},
    },
    "dlm": {
        "model": {
            "family": "dlm",
            "length": 16,
            "vocabulary": 256,
            "width": 16,
            "depth": 1,
            "num_heads": 2,
            "condition_width": 8,
            "time_width": 8,
        },
        "data": {"kind": "text", "length": 16},
        "sampling": {"steps": 2},
    },
    "pixelhdm": {
        "model": {
            **PIXELHDM,
            "width": 16,
            "patch_size": 8,
            "num_heads": 2,
            "num_kv_heads": 1,
            "mrope_widths": [2, 2, 4],
            "max_resolution": 64,
            "text_length": 16,
            "text_depth": 1,
            "text_encoder": "learned",
        },
        "objective": {"weights": {"velocity": 1.0, "frequency": 1.0, "alignment": 0.0}},
        "data": {"kind": "captioned_digits"},
        "sampling": {"steps": 2, "height": 16, "width": 16},
    },
}
GAUSSIAN = {
    "model__variance_channels": "predicted",
    "objective": {"process": "gaussian"},
    "sampling": {"solver": "ddpm"},
}
"""Changes of the smallest experiment of `dit`: the Gaussian process, with a learned variance."""
BLOCKS = {
    "model": {
        "family": "dlm",
        "length": 256,
        "vocabulary": 256,
        "width": 32,
        "depth": 2,
        "num_heads": 2,
        "block_size": 64,
    },
    "data": {"kind": "text", "length": 256, "packing": "masked"},
    "sampling": {"block": {}, "steps": 2},
    "batch": {"size": 4, "micro": 2},
}
"""Sections of an experiment of text that is made block by block."""
FAMILIES = tuple(_FAMILIES)
"""Names of the families."""


def smallest(family, workers=1, **changes):
    """The smallest experiment of a family, of two micro-batches a worker; `training__steps=3`
    changes `training.steps`.

    Raises UserError for changes that the spec does not accept.
    """
    spec = {"name": f"smallest-{family}", **_COMMON, **_FAMILIES[family]}
    spec |= {
        "batch": {"size": 4 * workers, "micro": 2},
        "evaluation": {"samples": 0, "limit": 2 * workers},
    }
    experiment = class_for(spec).model_validate(spec | {"resources": {"workers": workers}})
    return experiment.replace_all(
        {path.replace("__", "."): value for path, value in changes.items()}
    )
