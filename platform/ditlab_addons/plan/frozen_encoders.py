"""Frozen encoders that run in a step: weights, memory and operations, from their configurations
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ditlab.encoders.autoencoder import FrozenAutoencoder, library
from ditlab.encoders.checkpoint import EncoderCheckpoint
from ditlab.home import resolve_user_file
from ditlab.inputs.meta_step import DTYPES, AnsweredReads, DataShape
from ditlab.spec.encoders import IMAGE, TEXT
from ditlab.spec.experiment import Experiment
from ditlab_addons.plan.pass_memory import FusedKernels, LiveBytes

AT_ONCE = 64
"""Captions, or images, of one pass on a GPU; a CPU encodes them one by one."""


@dataclass(frozen=True)
class EncoderWork:
    """Frozen encoders of a worker, none of whose features is cached, and its autoencoder."""

    weights: int = 0
    """Bytes on the device."""
    pass_bytes: int = 0
    """Most bytes of one sample's pass, beside the weights."""
    flops: int = 0
    """Operations of one sample's caption and image."""
    decoding_bytes: int = 0
    """Most bytes of decoding one sample's latents in an evaluation, beside the weights."""
    host: int = 0
    """Bytes of cached features in the host's memory, captions at their longest."""
    left_out: tuple[str, ...] = ()
    """Encoders that are not counted, and why."""


def encoder_work(experiment: Experiment, data: DataShape, downloads: Path | None) -> EncoderWork:
    """Count the encoders that compute features for a step because the data hold none, and the
    autoencoder that decodes samples; none is fetched or opened. Captions count with the model's
    longest. Raises UserError for a damaged configuration."""
    spec = experiment.encoders
    work = EncoderWork()
    left_out = list[str]()
    needed = {field.name for field in experiment.batch_fields()} - (data.columns or frozenset())
    for kind, place, made in (("text", spec.text, {*TEXT}), ("image", spec.image, {IMAGE})):
        option = f"encoders.{kind}"
        if place is None or not needed & made:
            continue
        if data.columns is None:
            left_out.append(
                f"{option}, as whether a step runs it depends on the data, which are not here"
            )
        elif (checkpoint := EncoderCheckpoint.here(place, option, downloads)) is None:
            left_out.append(f"{option}={place}, which is not on this machine")
        else:
            weights, peak, flops, features = _trace(checkpoint, experiment, data, kind)
            host = work.host + spec.cache * features
            work = EncoderWork(
                work.weights + weights, max(work.pass_bytes, peak), work.flops + flops, host=host
            )
    evaluation = experiment.evaluation
    draws_samples = evaluation.every is not None and (evaluation.samples or evaluation.quality)
    place = spec.autoencoder
    if place is not None and draws_samples:
        if not resolve_user_file(place).exists():
            left_out.append(f"encoders.autoencoder={place}, which is no folder of this machine")
        else:
            weights, peak = _trace_decoder(FrozenAutoencoder(place), experiment)
            work = replace(work, weights=work.weights + weights, decoding_bytes=peak)
    return replace(work, left_out=tuple(left_out))


def _trace_decoder(autoencoder: FrozenAutoencoder, experiment: Experiment) -> tuple[int, int]:
    """Count the bytes of an autoencoder's weights, and of decoding one sample. Raises UserError
    where it is missing.
    """
    kind = library()
    latents = next(
        field.shape for field in experiment.model.batch_fields() if field.name == "image"
    )
    with torch.device("meta"), torch.no_grad():
        network = kind.from_config(dict(autoencoder.files.config)).requires_grad_(False).eval()
        weights, peak, _ = _run_counted(network, network.decode, z=torch.empty(1, *latents))
    return weights, peak


def _trace(
    checkpoint: EncoderCheckpoint, experiment: Experiment, data: DataShape, kind: str
) -> tuple[int, int, int, int]:
    """Count the bytes of an encoder's weights and of one sample's pass, its operations, the bytes
    of its features; the encoder is built without a head from its configuration. Raises as its
    `config` does."""
    config = checkpoint.config()
    dtype = DTYPES[experiment.encoders.precision]
    with checkpoint.reading() as transformers, torch.device("meta"):
        network = transformers.AutoModel.from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
    network.requires_grad_(False).eval()
    if kind == "text":
        length = next(
            field.at_most or 1 for field in experiment.batch_fields() if field.name == TEXT[0]
        )
        tokens = torch.empty(1, length, dtype=torch.int64, device="meta")
        inputs: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
    else:
        inputs = {
            "pixel_values": torch.empty(1, *data.of_experiment(experiment)["image"], device="meta")
        }
    counter = FlopCounterMode(display=False)
    # transformers asks whether rows are whole: true
    with torch.device("meta"), torch.no_grad(), AnsweredReads(()):
        with counter:
            network(**inputs)
        weights, peak, output = _run_counted(network, network, **inputs)
    return weights, peak, counter.get_total_flops(), output.last_hidden_state.nbytes


def _run_counted(network: Any, run: Callable[..., Any], **inputs: Any) -> tuple[int, int, Any]:
    """Return the bytes of a network's weights, the most bytes beside them and the inputs in a run,
    and its result.
    """
    tensors = [*network.parameters(), *network.buffers()]
    tracker = LiveBytes("meta")
    tracker.add((tensors, inputs))
    before = tracker.live
    with tracker, FusedKernels():
        output = run(**inputs)
    return sum(each.nbytes for each in tensors), tracker.peak - before, output
