"""Figures of the language model: its kinds by name, its loss by noise, its network, and samples of
text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ditlab_models.contract import TextCodec
from ditlab_models.dlm.network import DLM, TokenNoise
from ditlab_models.dlm.spec import DLMObjectiveSpec, DLMSpec
from ditlab_models.figure_kinds.attention import catch_attention, sequence_attention_figure
from ditlab_models.figure_kinds.embeddings import rotary_figure, time_figure
from ditlab_models.figure_kinds.network import modulation_figure, pass_figure, vectors_figure
from ditlab_models.figure_makers import FigureInputs, FigureMakers
from ditlab_models.figures import Curve, Figure, Heatmap, Lines, evenly_spaced
from ditlab_models.layers.adaln import split_six
from ditlab_models.processes.score_entropy import expected_zero_score_entropy, log_scores
from ditlab_models.processes.specs import TokenNoiseSchedule
from ditlab_models.processes.uniform_graph import corrupt, move_probability, posterior
from ditlab_models.tensors import to_numpy

NUM_LEVELS = 16
ROUNDS = 2
"""Draws of each sequence at each level."""
NUM_SAMPLES = 4
MAX_TOKENS = 40
"""Columns of a table of tokens."""
NUM_FRAMES = 14
DENOISING_TIMES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Times t from which the network guesses a text."""
NUM_TIMES = 101
ATTENTION_TIME = 0.5
"""Time t of the text whose attention is drawn."""
MAX_ATTENDED_TOKENS = 128
MAX_VECTORS = 400


def figure_makers(noise: TokenNoise, name: str, text: TextCodec | None) -> FigureMakers:
    """Return the makers of a trained network's figures by kind; `name` is that of the noise
    schedule.
    """
    return {
        "samples": draw_samples,
        "trajectory": partial(draw_trajectory, text=text),
        "denoising": partial(draw_denoising, noise=noise, text=text),
        "loss_by_noise": partial(draw_loss_by_noise, noise=noise),
        "noise_schedule": lambda inputs: noise_schedule_figure(
            noise.schedule, noise.vocabulary, name
        ),
        "attention": partial(draw_attention, noise=noise),
        "adaln": partial(draw_adaln, noise=noise),
        "features": partial(draw_features, text=text),
    }


def static_figures(spec: DLMSpec) -> Mapping[str, Figure]:
    """Draw the kinds that need no weights: noise schedule, rotary positions, the sinusoid of noise,
    forward pass.
    """
    noise = DLMObjectiveSpec().noise
    return {
        "noise_schedule": noise_schedule_figure(noise, spec.vocabulary, noise.kind),
        "positions": rotary_figure(spec.head_width, spec.length),
        "time_embedding": time_figure(
            spec.time_width,
            layout="cos_sin",
            denominator="half",
            last=noise.sigma_max,
            label="noise sigma",
        ),
        "forward_pass": forward_pass_figure(spec),
    }


def draw_loss_by_noise(inputs: FigureInputs, noise: TokenNoise) -> Figure:
    """Draw `loss_by_noise`: the batch's loss times d sigma/dt by t, and unweighted by sigma, beside
    log scores of 0.

    Bands are two standard errors over sequences.
    """
    x0 = inputs.batch["tokens"]
    t = (torch.arange(NUM_LEVELS, dtype=torch.float32, device=x0.device) + 0.5) / NUM_LEVELS
    by_level = []  # losses of sequences, at each level
    for time in t:
        levels = noise.at_time(time.expand(noise.time_shape(x0)))
        rounds = []
        for _ in range(ROUNDS):
            move, jump = torch.rand(2, *x0.shape, generator=inputs.generator, device=x0.device)
            rounds.append(noise.losses(inputs.network, x0, levels, move, jump).per_token.mean(1))
        by_level.append(torch.cat(rounds).double())
    losses = torch.stack(by_level)  # (levels, sequences)
    sigma = noise.schedule.sigma(t).double()
    rate = noise.schedule.rate(t).double()
    mean = losses.mean(1)
    error = 2 * losses.std(1) / losses.shape[1] ** 0.5
    flat = expected_zero_score_entropy(sigma, noise.vocabulary)
    panels = []
    for times, x, title, x_label, y_label in (
        (rate, t, "Loss times d sigma/dt, by time", "t", "nats a token per unit of t"),
        (
            torch.ones_like(rate),
            sigma,
            "Loss, by noise",
            "sigma (log scale)",
            "nats a token per unit of sigma",
        ),
    ):
        abscissa, y, band, zero = (
            to_numpy(each) for each in (x, times * mean, times * error, times * flat)
        )
        curves = [Curve(abscissa, y, "network", band), Curve(abscissa, zero, "all log scores 0")]
        panels.append(Lines(curves, title, x_label, y_label, log_x=x is sigma))
    area, zero_area = (float((rate * each).mean()) for each in (mean, flat))
    title = (
        f"Where the loss sits (areas in nats a token: network {area:.3f}, all log scores 0 "
        f"{zero_area:.3f})"
    )
    return Figure(panels, title=title)


def draw_samples(inputs: FigureInputs) -> Figure:
    """Draw `samples`: texts, and the way of the first one from noise."""
    num = min(NUM_SAMPLES, inputs.sampler.max_batch_size or NUM_SAMPLES)
    conditions = inputs.sampler.conditions(num)
    return inputs.sampler.show(inputs.samples(conditions, num))


def draw_trajectory(inputs: FigureInputs, text: TextCodec | None) -> Figure:
    """Draw `trajectory`: the first tokens of a sample step by step, and the share of all that have
    come to rest.
    """
    conditions = inputs.sampler.conditions(1)
    samples = inputs.samples(conditions, 1, trajectory=True)
    assert samples.trajectory is not None
    frames = samples.trajectory[:, 0].cpu()  # (frames, L)
    steps = np.arange(len(frames))
    shown = evenly_spaced(len(frames) - 1, NUM_FRAMES)
    # 1 from here on as in the end
    at_rest = (frames == frames[-1]).flip(0).cumprod(0).flip(0).float()
    num = min(MAX_TOKENS, frames.shape[1])
    table = Heatmap(
        at_rest[shown, :num].numpy(),
        f"The first {num} of {frames.shape[1]} tokens (bright: as in the end, from here on)",
        "token",
        "step",
        limits=(0.0, 1.0),
        y_names=[str(step) for step in shown],
        unit="has its last value",
        cell_texts=[token_texts(frames[step, :num], text) for step in shown],
    )
    curves = [
        Curve(steps, at_rest.mean(1).numpy(), "have their last value"),
        Curve(
            steps[1:], (frames[1:] != frames[:-1]).float().mean(1).numpy(), "change in this step"
        ),
    ]
    lines = Lines(curves, "All tokens of the sample", "step", "share of tokens")
    return Figure([table, lines], title="A text token by token, from noise", columns=1)


def draw_denoising(inputs: FigureInputs, noise: TokenNoise, text: TextCodec | None) -> Figure:
    """Draw `denoising`: a held-out text at rising noise, and the network's likeliest token at every
    place.
    """
    x0 = inputs.batch["tokens"][:1]
    state = inputs.generator.get_state()
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    texts = []
    guesses = []
    names = []
    for time in DENOISING_TIMES:
        inputs.generator.set_state(state)  # a token that has moved stays so as noise rises
        sigma = noise.schedule.sigma_at(time)
        noised, levels, first = noise_sequence(inputs, x0, sigma, noise.schedule)
        output = inputs.network(noised, levels, documents=noise.documents(x0))
        shown = slice(first, first + min(MAX_TOKENS, x0.shape[1] - first))
        x = noised[0, shown]
        clean = x0[0, shown]
        scores = log_scores(output[0, shown].float(), x, noise.score)
        likeliest = posterior(scores, x, torch.tensor(sigma).to(scores)).argmax(-1)
        rows.append((to_numpy((x == clean).float()), to_numpy((likeliest == clean).float())))
        texts.append(token_texts(x, text))
        guesses.append(token_texts(likeliest, text))
        names.append(f"t={time:g}, sigma={sigma:.2g}")
    moved, guessed = (np.stack(each) for each in zip(*rows, strict=True))
    right = ", ".join(f"{float(each.mean()):.0%}" for each in guessed)
    common: dict[str, Any] = {"limits": (0.0, 1.0), "y_names": names, "unit": "as in the text"}
    title = f"Tokens {shown.start} to {shown.stop - 1}, noised"
    guess_title = f"The likeliest token at each place (right: {right})"
    panels = [
        Heatmap(moved, title, "token", "noise", cell_texts=texts, **common),
        Heatmap(guessed, guess_title, "token", "noise", cell_texts=guesses, **common),
    ]
    return Figure(
        panels, title="A held-out text at rising noise, and the network's guess", columns=1
    )


def noise_schedule_figure(schedule: TokenNoiseSchedule, vocabulary: int, name: str) -> Figure:
    """Draw sigma(t), the share of tokens that have moved, and d sigma/dt, by which losses are
    weighted.
    """
    times = torch.linspace(0, 1, 201, dtype=torch.float64)
    sigma = schedule.sigma(times)
    moved = move_probability(sigma)
    other = moved * (vocabulary - 1) / vocabulary
    t = times.numpy()
    label = "time t"
    shares = [
        Curve(t, moved.numpy(), "have jumped, 1 - e^-sigma"),
        Curve(t, other.numpy(), "differ from x_0"),
    ]
    rate = Curve(t, schedule.rate(times).numpy())
    panels = [
        Lines([Curve(t, sigma.numpy())], f"Noise: {name}", label, "sigma(t)", log_y=True),
        Lines(shares, "Tokens that noise has reached", label, "share of tokens"),
        Lines([rate], "Weight of the loss", label, "d sigma/dt", log_y=True),
    ]
    span = f"sigma from {schedule.sigma_min:g} to {schedule.sigma_max:g}"
    return Figure(panels, title=f"Noise of tokens by time, {span}", columns=3)


def draw_attention(inputs: FigureInputs, noise: TokenNoise) -> Figure:
    """Draw `attention`: maps by layer and head over the first tokens of a held-out text, noised at
    t = 0.5.
    """
    network = inputs.trained(DLM)
    block = network.spec.block_size or 1
    num = min(inputs.batch["tokens"].shape[1], max(1, MAX_ATTENDED_TOKENS // block) * block)
    x0 = inputs.batch["tokens"][:1, :num]
    noised, levels, _ = noise_sequence(
        inputs, x0, noise.schedule.sigma_at(ATTENTION_TIME), noise.schedule
    )
    attentions = [each.attention for each in network.blocks]
    layers = catch_attention(
        attentions, lambda: network(noised, levels, documents=noise.documents(x0))
    )
    title = (
        f"Attention over {layers[0].shape[-1]} tokens of a text, noised at t = {ATTENTION_TIME:g}"
    )
    return sequence_attention_figure(layers, "token", title)


def draw_adaln(inputs: FigureInputs, noise: TokenNoise) -> Figure:
    """Draw `adaln`: the middle block's modulation before attention over t, and the change of every
    block's with t.
    """
    network = inputs.trained(DLM)
    t = torch.linspace(0, 1, NUM_TIMES, device=network.embedding.weight.device)
    condition = network.condition(noise.schedule.sigma(t)[None])[0]  # (times, C)
    modulations = [split_six(block.modulation(condition))[0] for block in network.blocks]
    return modulation_figure(modulations, t, "time t")


def draw_features(inputs: FigureInputs, text: TextCodec | None) -> Figure:
    """Draw `features`: principal components of the learned vectors of tokens that occur in held-out
    text.
    """
    tokens, counts = inputs.batch["tokens"].unique(return_counts=True)
    # the commonest first
    tokens = tokens[counts.argsort(descending=True, stable=True)][:MAX_VECTORS]
    vectors = to_numpy(inputs.trained(DLM).embedding.weight[tokens].float())
    what = f"the vectors of {len(vectors)} tokens of held-out text"
    return vectors_figure(vectors, token_texts(tokens, text), what, 120)


def noise_sequence(
    inputs: FigureInputs, x0: Tensor, sigma: float, schedule: TokenNoiseSchedule
) -> tuple[Tensor, Tensor, int]:
    """Noise a sequence (1, L): all of it, or under a block-causal network its last block, behind
    clean ones.

    Returns its tokens (1, L), the noise levels (1, N) of its N segments, and the first noised
    place.
    """
    spec = inputs.trained(DLM).spec
    length = x0.shape[1]
    block = min(spec.block_size or length, length)
    move, jump = torch.rand(
        2, *x0.shape, generator=inputs.generator, device=inputs.generator.device
    ).to(x0.device)
    levels = torch.full((1, length // block), schedule.sigma_min, device=x0.device)
    levels[:, -1] = sigma
    noised = corrupt(x0, levels[:, -1:], move, jump, spec.vocabulary)
    first = length - block
    return torch.cat((x0[:, :first], noised[:, first:]), dim=1), levels, first


def token_texts(tokens: Tensor, text: TextCodec | None) -> list[str]:
    """Return each token's text with visible blanks, or its number where there is no tokeniser."""
    if text is None:
        return [str(token) for token in tokens.tolist()]
    blanks = str.maketrans({"\n": "↵", "\t": "→", " ": "␣"})
    return [text.decode([token]).translate(blanks) or "·" for token in tokens.tolist()]


def forward_pass_figure(spec: DLMSpec) -> Figure:
    """Draw the boxes from noisy tokens to log scores, and the conditioning by the noise level
    beside them.
    """
    length = spec.length
    width = spec.width
    vocabulary = spec.vocabulary
    mask = "" if spec.block_size is None else f", causal in blocks of {spec.block_size}"
    steps = [
        ("Noisy tokens x", f"{length} of {vocabulary:,}"),
        ("Embedding", f"{length} x {width}"),
        ("In every block: rotary positions", "turn queries and keys, never values"),
        (
            f"{spec.depth} blocks: attention",
            f"x + gate · attention(adaLN(x, c)), {spec.num_heads} heads{mask}",
        ),
        (
            f"{spec.depth} blocks: SwiGLU",
            f"x + gate · SwiGLU(adaLN(x, c)), hidden {spec.mlp_width}",
        ),
        ("RMSNorm", f"{length} x {width}"),
        ("Output layer", f"adaLN, Linear {width} → {vocabulary:,}, starts at 0"),
        ("Log scores", f"{length} x {vocabulary:,}, 0 at the token itself"),
    ]
    conditions = [
        ("Noise level sigma", "by sample, block or token"),
        ("Sinusoid", f"{spec.time_width} numbers, cosines first"),
        ("MLP, SiLU: condition c", f"{spec.time_width} → {spec.condition_width}"),
        ("adaLN-Zero", "shift, scale, gate of each branch"),
    ]
    return pass_figure(steps, conditions, (3, 4, 6), "The forward pass of the language model")
