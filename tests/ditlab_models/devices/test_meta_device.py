"""Every family's loss, gradients, held-out metrics and sampler on a device whose values nobody may
read.
"""

import pytest
import torch

from ditlab_models.contract import PreparingObjective, Prompt, RealRows, SampleRequest
from support.devices.meta_device import META, AllowedRead, DeviceError, MetaDevice, MetaNoise
from support.devices.reference_flex import use_reference_flex
from support.devices.variants import BATCH, SIDE, Parts, text_codec, variants
from support.models.draws import KeyedNoise

CONSTANT = "tensors.py:Constant.on"
"""Place that copies a constant to the device, once a run."""
READS = {
    "processes/draws.py:draw_seeds": AllowedRead(
        "once a sampling run: each sample has a seed", lambda _: 1
    ),
    "processes/draws.py:starting_noise": AllowedRead(
        "once a sampling run: noise of a caller must be finite"
    ),
    "dlm/sampling.py:starting_tokens": AllowedRead(
        "once a sampling run: tokens of a caller must exist"
    ),
    "dlm/sampling.py:DLMSampler.sample": AllowedRead(
        "once a block: one that prompts fill is not denoised; once a sampling run: eight "
        "frames of one sample",
        lambda values: False if values.dtype == torch.bool else 0,
    ),
    "pixelhdm/sampling.py:PixelHDMSampler.sample": AllowedRead(
        "once a sampling run: seeds, size and strength of the request",
        lambda values: 0.5 if values.is_floating_point() else SIDE,
    ),
    "region/network.py:present_or_none": AllowedRead(
        "once a held-out batch: attention without a mask is faster"
    ),
    "tensors.py:masked_rows": AllowedRead(
        "once a held-out batch: queries of masked regions alone", lambda _: 7
    ),
}
"""Reads of values, by their place; all others raise. Each is of the sampling run or, where stated,
of the held-out batch, never of a loss or a sampler's step."""


def first_of_each(rows):
    """One row of each family: operations on this device take a millisecond each."""
    return list({name: (name, *rest) for name, *rest in reversed(list(rows))}.values())


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        (first_of_each(variants()), torch.float32),
        pytest.param(list(variants()), torch.float32, marks=pytest.mark.slow),
        pytest.param(list(variants()), torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_training_and_held_out_metrics(rows, dtype):
    for name, model, objective in rows:
        parts, shown = Parts(name, model, objective, dtype), (name, model, objective)
        batch = parts.batch | prepared(parts)
        # metrics may measure what the loss leaves out: a term of weight 0, with its own constants
        with MetaDevice(READS) as first, torch.no_grad():
            parts.objective.loss(parts.network, batch, MetaNoise())
            parts.objective.metrics(parts.network, parts.batch, MetaNoise())
        assert {*first.seen.transfers} <= {CONSTANT}, (shown, first.seen.transfers)
        with MetaDevice({}) as training:
            components = parts.objective.loss(parts.network, batch, MetaNoise())
            total = sum(parts.objective.weights[each] * value for each, value in components.items())
            total.backward()
        with MetaDevice(READS) as mode:
            metrics = parts.objective.metrics(parts.network, parts.batch, MetaNoise())
        found = {**components, **metrics}.values()
        assert all(value.device == META and value.ndim < 2 for value in found), shown
        trained = [
            *parts.network.parameters(),
            *(parts.objective.modules or torch.nn.Module()).parameters(),
        ]
        assert all(each.grad is not None and each.grad.device == META for each in trained), shown
        transfers = training.seen.transfers + mode.seen.transfers
        assert not transfers, (shown, transfers)


def prepared(parts):
    """What the platform adds to a batch, from rows on the host."""
    if not isinstance(parts.objective, PreparingObjective):
        return {}
    host = {
        name: torch.ones(parts.batch[name].shape, dtype=torch.bool)
        for name in parts.objective.prepared_from
    }
    return {
        name: values.to(META)
        for name, values in parts.objective.prepare(host, KeyedNoise()).items()
    }


def test_attention_by_tiles(monkeypatch):
    """Tiles are found on the device, by blocks and by documents, and nothing is copied for them."""
    use_reference_flex(monkeypatch)
    for model in ({}, {"block_size": 4}):
        parts = Parts("dlm", model, {}, torch.float32)
        with MetaDevice({}) as mode:
            parts.objective.loss(parts.network, parts.batch, MetaNoise())[
                "score_entropy"
            ].backward()
        assert all(
            each.grad is not None and each.grad.device == META
            for each in parts.network.parameters()
        ), model
        assert not mode.seen.transfers, (model, mode.seen.transfers)


def samplers():
    """Yield (family, model, objective, sampling, request) such that every option is there with each
    value once.
    """
    for solver in ("euler", "heun", "midpoint", "rk4"):
        yield "dit", {}, {}, {"solver": solver}, {}
    for name in ("dit", "unet"):
        yield name, {"num_classes": 10, "label_dropout": 0.1}, {}, {"guidance": 2.5}, {}
    ddpm = {"corruption": "ddpm"}
    yield "region", {}, {}, {"solver": "predict"}, {"rows": True}
    yield "region", ddpm, {}, {"solver": "ddpm"}, {"rows": True}
    for eta in (0.0, 1.0):
        yield "region", ddpm, {}, {"solver": "ddim", "eta": eta}, {"rows": True}
    prompts = {"prompts": (Prompt("abcd"), Prompt("ab", -2))}
    for solver in ("euler", "analytic", "categorical"):
        yield "dlm", {}, {}, {"solver": solver}, {}
        yield "dlm", {}, {"score": "softmax"}, {"solver": solver, "denoise": False}, prompts
    for cache in (True, False):
        yield "dlm", {"block_size": 4}, {}, {"block": {"cache": cache}}, prompts
    frozen = {"prompts": (Prompt("one"), Prompt("two")), "encode": True}
    for solver in ("euler", "heun", "dpmpp_2m", "midpoint", "dpmpp_2s"):
        yield "pixelhdm", {}, {}, {"solver": solver, "rescale": 0.5}, frozen
    for schedule in ("linear", "cosine", "quadratic"):
        guided = {"guidance_schedule": schedule, "interval": (0.2, 0.8), "final_projection": False}
        yield (
            "pixelhdm",
            {"text_encoder": "learned"},
            {"prediction": "image", "weights": {"alignment": 0.0}},
            guided,
            {"prompts": (Prompt("one"),)},
        )
    negative = frozen | {"negative_prompt": "three", "start": True, "strength": 0.5, "seed": 3}
    yield "pixelhdm", {"positions": "learned"}, {}, {}, negative


def request_of(parts, asked):
    """A request, with tensors of the device where real ones would be there."""
    made = dict(asked)
    if "rows" in made:
        made["rows"] = RealRows(parts.batch, {}, {}, MetaNoise())
    if "encode" in made:
        fields = {"text": (5, 32), "text_mask": (5,), "text_pooled": (32,)}
        kinds = {"text_mask": torch.bool}
        made["encode"] = lambda texts: {
            name: torch.ones(len(texts), *shape, dtype=kinds.get(name), device="meta")
            for name, shape in fields.items()
        }
    if "start" in made:
        made["start"] = torch.zeros(3, SIDE, SIDE)
    return SampleRequest(**made)


def draw(parts, sampling, asked, steps, injected):
    """Draw samples in a number of steps; return what a GPU would have been asked for."""
    name = parts.family.name
    sizes = {"height": SIDE, "width": SIDE} if name == "pixelhdm" else {}
    spec = parts.family.sampling(**{"steps": steps, **sizes, **sampling})
    sampler = parts.family.build_sampler(
        spec, parts.model, parts.objective_spec, text_codec() if name == "dlm" else None
    )
    conditions = sampler.conditions(BATCH, request_of(parts, asked))
    shape = {"region": (12, 5), "dlm": (12,), "pixelhdm": (3, SIDE, SIDE)}.get(
        name, (1, SIDE, SIDE)
    )
    dtype = torch.int64 if name == "dlm" else torch.float32
    noise = torch.zeros(BATCH, *shape, dtype=dtype, device="meta") if injected else None
    with MetaDevice(READS) as mode:
        samples = sampler.sample(
            parts.network, conditions, BATCH, torch.Generator(), trajectory=True, noise=noise
        )
        assert samples.values.device == META and samples.values.shape == (BATCH, *shape)
    return mode.seen


@pytest.mark.parametrize(
    "rows",
    [first_of_each(samplers()), pytest.param(list(samplers()), marks=pytest.mark.slow)],
)
def test_samplers(rows):
    """Reads and copies from the host do not grow with the steps."""
    for name, model, objective, sampling, asked in rows:
        parts, shown = Parts(name, model, objective, torch.float32), (name, model, sampling, asked)
        draw(parts, sampling, asked, 2, injected=False)  # copies constants, once
        few, many = (draw(parts, sampling, asked, steps, "seed" not in asked) for steps in (2, 4))
        assert few == many, (shown, few, many)


@pytest.mark.slow
def test_each_allowed_read_is_there():
    """The list names no place that reads nothing."""
    seen = set()
    for name, model, objective in variants():
        parts = Parts(name, model, objective, torch.float32)
        with MetaDevice(READS) as mode:
            parts.objective.metrics(parts.network, parts.batch, MetaNoise())
        seen |= {*mode.seen.reads}
    for name, model, objective, sampling, asked in samplers():
        parts = Parts(name, model, objective, torch.float32)
        seen |= {*draw(parts, sampling, asked, 2, "seed" not in asked).reads}
    assert seen == {*READS}


def test_the_device_refuses_what_a_gpu_would_wait_for():
    values = torch.empty(4, device="meta")
    uses = {
        "reads values": lambda: values.sum().item(),
        "of a tensor of the device": lambda: bool((values > 0).any()),
        "reads values of": lambda: values.cpu(),
        "depends on values": lambda: (values > 0).nonzero(),
        "by a mask": lambda: values[values > 0],
        "mixes tensors of the host": lambda: values + torch.ones(4),
    }
    for message, use in uses.items():
        with pytest.raises(DeviceError, match=message), MetaDevice({}):
            use()
    with MetaDevice({}) as mode:
        values + torch.tensor(2.0)  # a scalar of the host is an argument of the kernel
        torch.ones(4).to("meta")
    assert len(mode.seen.transfers) == 1
