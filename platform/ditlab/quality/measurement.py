"""Measurements behind an experiment's figures: held-out metrics, a family's own evaluation, the
quality of samples.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ditlab.data.splits import DataSplits
from ditlab.data.stores.view import View
from ditlab.encoders.checkpoint import encoder_digest
from ditlab.home import Home
from ditlab.numerics import NUMERICS_VERSION
from ditlab.receipts.records import PASS_SIZE, SETTINGS, THREADS, Measurement
from ditlab.spec.experiment import Experiment

FLOAT = "fp32"
"""Precision of a network that `SavedRun.network` opens; that of an evaluation is
`training.precision`.
"""


def held_out_measurement(
    experiment: Experiment,
    data: DataSplits,
    num: int | None,
    precision: str,
    device_type: str,
    home: Home,
    batch_size: int | None = None,
    threads: int | None = None,
) -> Measurement:
    """Return what metrics of the first `num` held-out samples (None: all) are measured with, on a
    kind of device.

    `batch_size` of a pass and a CPU's `threads` are parts where they are known: they decide the
    last bits.
    """
    parts = _held_out_parts(experiment, data, num, precision, device_type, home)
    return Measurement.of(parts | _rounding_parts(batch_size, threads, device_type))


def family_measurement(
    experiment: Experiment,
    data: DataSplits,
    num: int | None,
    batch_size: int,
    device_type: str,
    home: Home,
) -> Measurement:
    """Return what a family's own evaluation is measured with: baselines are fitted on the training
    samples.
    """
    parts = _held_out_parts(experiment, data, num, FLOAT, device_type, home)
    own = {
        "family": experiment.model.family,
        "training samples": _rows(data.train),
        "batch": batch_size,
    }
    return Measurement.of(parts | own)


def quality_measurement(
    experiment: Experiment,
    data: DataSplits,
    num: int,
    batch_size: int,
    seed: int,
    precision: str,
    device_type: str,
    features: str,
    threads: int | None = None,
) -> Measurement:
    """Return what the quality of `num` samples is measured with; `features`: a digest of the
    networks of features. `threads` are those of a CPU, where they are known."""
    return Measurement.of(
        {
            "held-out samples": _rows(data.held_out),
            "training samples": _rows(data.train),
            "sampler": experiment.to_dict()["sampling"],
            "numerics": NUMERICS_VERSION,
            "number": num,
            "batch": min(batch_size, num),
            "seed": seed,
            "precision": precision,
            "device": device_type,
            "features": features,
        }
        | _rounding_parts(None, threads, device_type)
    )


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors by name, whatever their device."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name}/{value.dtype}/{tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _held_out_parts(
    experiment: Experiment,
    data: DataSplits,
    num: int | None,
    precision: str,
    device_type: str,
    home: Home,
) -> dict[str, Any]:
    encoders = experiment.encoders
    downloads = home.caches / "encoders"
    settings = experiment.objective.metric_settings(experiment.model)
    return {
        "held-out samples": _held_out_rows(data, num),
        "objective": settings.get("", {}),
        **{f"{SETTINGS}{name}": value for name, value in settings.items() if name},
        "shapes": [
            [each.name, each.shape]
            for each in experiment.model.batch_fields()
            if each.name != "label"
        ],
        "text encoder": encoder_digest(encoders.text, encoders.precision, downloads),
        "image encoder": encoder_digest(encoders.image, encoders.precision, downloads),
        "packing": data.text.packing if data.text else "",
        "precision": precision,
        "device": device_type,
        "numerics": NUMERICS_VERSION,
    }


def same_rows(data: DataSplits, one: int | None, other: int | None) -> bool:
    """Return True if two numbers of first held-out samples (None: all) are those of the same
    ones.
    """
    return _held_out_rows(data, one) == _held_out_rows(data, other)


def _held_out_rows(data: DataSplits, num: int | None) -> Any:
    if data.mixture is None:
        return _rows(data.held_out, num)
    measured = data.mixture.measured(len(data.held_out) if num is None else num)
    return {name: _rows(data.mixture.parts[name].held_out, part) for name, part in measured.items()}


def _rounding_parts(
    batch_size: int | None, threads: int | None, device_type: str
) -> dict[str, int]:
    """Parts that decide the last bits, as far as they are known; threads matter on a CPU."""
    own = {PASS_SIZE: batch_size, THREADS: threads if device_type == "cpu" else None}
    return {name: number for name, number in own.items() if number is not None}


def _rows(view: View, num: int | None = None) -> list[str]:
    one = ["first captions"] if any(each.one_caption for each in view.changes) else []
    return [view.store.fingerprint, hashlib.sha256(view.first(num).rows_key).hexdigest(), *one]
