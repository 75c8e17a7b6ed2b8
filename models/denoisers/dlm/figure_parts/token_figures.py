"""Figures of tokens by noise: a sample token by token, noised text with the network's guesses, the noise schedule.

L tokens of a sequence.
"""

from __future__ import annotations

import numpy as np
import torch

from denoisers.contract import TextCodec
from denoisers.dlm.figure_parts.noised_sequence import noise_sequence
from denoisers.dlm.figure_parts.token_text import token_text
from denoisers.dlm.network import DLM
from denoisers.dlm.noising import TokenNoise
from denoisers.dlm.reverse_process import log_scores
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Curve, Figure, Heatmap, Lines
from denoisers.processes.discrete.schedule import SigmaSchedule
from denoisers.processes.discrete.uniform_graph import move_probability, posterior

NUM_SAMPLES = 4
MAX_TOKENS = 40
"""Columns of a table of tokens."""
NUM_FRAMES = 14
TIMES = (0.2, 0.4, 0.6, 0.8, 1.0)


def draw_samples(inputs: FigureInputs) -> Figure:
    """Draw `samples`: texts, and the way of the first one from noise."""
    num = min(NUM_SAMPLES, inputs.sampler.max_batch_size or NUM_SAMPLES)
    conditions = inputs.sampler.conditions(num)
    return inputs.sampler.show(inputs.sampler.sample(inputs.network, conditions, num, inputs.generator))


def draw_trajectory(inputs: FigureInputs, text: TextCodec | None) -> Figure:
    """Draw `trajectory`: the first tokens of a sample step by step, and the share of all that have come to rest."""
    conditions = inputs.sampler.conditions(1)
    samples = inputs.sampler.sample(inputs.network, conditions, 1, inputs.generator, trajectory=True)
    assert samples.trajectory is not None
    frames = samples.trajectory[:, 0].cpu()  # (frames, L)
    last = len(frames) - 1
    shown = sorted({round(step) for step in np.linspace(0, last, NUM_FRAMES)})
    final = frames == frames[-1]
    at_rest = final.flip(0).cumprod(0).flip(0).bool()  # from here on as in the end
    num = min(MAX_TOKENS, frames.shape[1])
    table = Heatmap(
        at_rest[shown, :num].float().numpy(),
        f"The first {num} of {frames.shape[1]} tokens (bright: as in the end, from here on)",
        "token",
        "step",
        limits=(0.0, 1.0),
        y_names=[str(step) for step in shown],
        unit="has its last value",
        cell_texts=[[token_text(token, text) for token in frames[step, :num].tolist()] for step in shown],
    )
    steps = np.arange(last + 1)
    changed = (frames[1:] != frames[:-1]).float().mean(1).numpy()
    curves = [
        Curve(steps, at_rest.float().mean(1).numpy(), "have their last value"),
        Curve(steps[1:], changed, "change in this step"),
    ]
    lines = Lines(curves, "All tokens of the sample", "step", "share of tokens")
    return Figure([table, lines], title="A text token by token, from noise", columns=1)


def draw_denoising(inputs: FigureInputs, noise: TokenNoise, text: TextCodec | None) -> Figure:
    """Draw `denoising`: a held-out text at rising noise, and the network's likeliest token at every place."""
    network = inputs.network
    assert isinstance(network, DLM)
    x0 = inputs.batch["tokens"][:1]
    state = inputs.generator.get_state()
    moved, guessed, texts, guesses, names = [], [], [], [], []
    num = first = 0
    for time in TIMES:
        inputs.generator.set_state(state)  # a token that has moved stays so as noise rises
        sigma = noise.schedule.sigma_at(time)
        noised = noise_sequence(network, x0, sigma, noise.schedule, inputs.generator)
        with torch.no_grad():
            output = network(noised.x, noised.sigma, documents=noise.documents(x0))
        first, num = noised.first, min(MAX_TOKENS, x0.shape[1] - noised.first)
        place = slice(first, first + num)
        scores = log_scores(output[0, place].float(), noised.x[0, place], noise.score)
        likeliest = posterior(scores, noised.x[0, place], torch.tensor(sigma).to(scores)).argmax(-1)
        moved.append((noised.x[0, place] == x0[0, place]).float().cpu().numpy())
        guessed.append((likeliest == x0[0, place]).float().cpu().numpy())
        texts.append([token_text(token, text) for token in noised.x[0, place].tolist()])
        guesses.append([token_text(token, text) for token in likeliest.tolist()])
        names.append(f"t={time:g}, sigma={sigma:.2g}")
    right = [float(each.mean()) for each in guessed]
    common = {"limits": (0.0, 1.0), "y_names": names, "unit": "as in the text"}
    title = f"Tokens {first} to {first + num - 1}, noised"
    shares = ", ".join(f"{share:.0%}" for share in right)
    panels = [
        Heatmap(np.stack(moved), title, "token", "noise", cell_texts=texts, **common),  # type: ignore[arg-type]
        Heatmap(np.stack(guessed), f"The likeliest token at each place (right: {shares})", "token", "noise",
                cell_texts=guesses, **common),  # type: ignore[arg-type]
    ]  # fmt: skip
    return Figure(panels, title="A held-out text at rising noise, and the network's guess", columns=1)


def noise_schedule_figure(schedule: SigmaSchedule, vocabulary: int, name: str) -> Figure:
    """Draw sigma(t), the share of tokens that have moved, and d sigma/dt, by which losses are weighted."""
    t = torch.linspace(0, 1, 201, dtype=torch.float64)
    sigma, rate = schedule.sigma(t), schedule.rate(t)
    moved = move_probability(sigma)
    other = moved * (vocabulary - 1) / vocabulary
    label = "time t"
    panels = [
        Lines([Curve(t.numpy(), sigma.numpy())], f"Noise: {name}", label, "sigma(t)", log_y=True),
        Lines(
            [
                Curve(t.numpy(), moved.numpy(), "have jumped, 1 - e^-sigma"),
                Curve(t.numpy(), other.numpy(), "differ from x_0"),
            ],
            "Tokens that noise has reached", label, "share of tokens",
        ),
        Lines([Curve(t.numpy(), rate.numpy())], "Weight of the loss", label, "d sigma/dt", log_y=True),
    ]  # fmt: skip
    span = f"sigma from {schedule.sigma_min:g} to {schedule.sigma_max:g}"
    return Figure(panels, title=f"Noise of tokens by time, {span}", columns=3)
