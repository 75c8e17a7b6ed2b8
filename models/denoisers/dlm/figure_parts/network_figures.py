"""Figures of a trained language model's network: attention, modulation by the noise level, token vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from denoisers.contract import TextCodec
from denoisers.dlm.attention_masks import block_causal_mask, two_copy_mask
from denoisers.dlm.figure_parts.noised_sequence import noise_sequence
from denoisers.dlm.figure_parts.token_text import token_text
from denoisers.dlm.network import DLM
from denoisers.dlm.noising import TokenNoise
from denoisers.dlm.spec import DLMSpec
from denoisers.figure_kinds.attention_parts import AttentionParts, catch_attention
from denoisers.figure_kinds.attention_steps import attention_steps_figure
from denoisers.figure_kinds.features import vectors_figure
from denoisers.figure_kinds.modulation import modulation_arrays, modulation_figure
from denoisers.figure_kinds.sequence_attention import sequence_attention_figure
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Figure, Heatmap
from denoisers.layers.adaln import split_six

NUM_TIMES = 101
TIME = 0.5
MAX_TOKENS = 128
MAX_VECTORS = 400


def draw_attention(inputs: FigureInputs, noise: TokenNoise) -> Figure:
    """Draw `attention`: maps by layer and head over the first tokens of a held-out text, noised at t = 0.5."""
    layers = _attend(inputs, noise)
    title = f"Attention over {layers[0].x.shape[0]} tokens of a text, noised at t = {TIME:g}"
    return sequence_attention_figure(layers, "token", title)


def draw_attention_steps(inputs: FigureInputs, noise: TokenNoise) -> Figure:
    """Draw `attention_steps`: one head of the middle layer from its input to its output."""
    layers = _attend(inputs, noise)
    middle = len(layers) // 2
    return attention_steps_figure(layers[middle], f"layer {middle + 1} of {len(layers)}")


def draw_adaln(inputs: FigureInputs, noise: TokenNoise) -> Figure:
    """Draw `adaln`: the middle block's modulation before attention over t, and the change of every block's with t."""
    network = _network(inputs)
    t = torch.linspace(0, 1, NUM_TIMES, device=network.embedding.weight.device)
    condition = network.condition(noise.schedule.sigma(t)[None])[0]  # (times, C)
    blocks = [modulation_arrays(split_six(block.modulation(condition))[0]) for block in network.transformer_blocks()]
    return modulation_figure(blocks, t.cpu().numpy(), "time t")


def draw_features(inputs: FigureInputs, text: TextCodec | None) -> Figure:
    """Draw `features`: principal components of the learned vectors of tokens that occur in held-out text."""
    network = _network(inputs)
    tokens, counts = inputs.batch["tokens"].unique(return_counts=True)
    tokens = tokens[counts.argsort(descending=True, stable=True)][:MAX_VECTORS]  # the commonest first
    vectors = network.embedding.weight.detach()[tokens].float().cpu().numpy()
    names = [token_text(token, text) for token in tokens.tolist()]
    return vectors_figure(vectors, names, f"the vectors of {len(vectors)} tokens of held-out text", 120)


def attention_mask_figure(spec: DLMSpec) -> Figure:
    """Draw which tokens attend to which, block by block: in sampling, and in training beside a clean copy."""
    assert spec.block_size is not None
    shown = min(spec.length, max(4, 128 // spec.block_size) * spec.block_size)
    one, two = block_causal_mask(shown, spec.block_size), two_copy_mask(shown, spec.block_size)
    one = torch.ones(shown, shown, dtype=torch.bool) if one is None else one
    panels = [
        _mask_panel(one, "Sampling: a block sees itself and earlier ones", ""),
        _mask_panel(two, "Training: noisy blocks see earlier clean ones", f"; from {shown} on: noisy copy"),
    ]
    return Figure(panels, title=f"Block-causal attention, model.block_size={spec.block_size}")


def _mask_panel(mask: Tensor, title: str, remark: str) -> Heatmap:
    labels = (f"key (token{remark})", f"query (token{remark})")
    return Heatmap(mask.float().numpy(), title, labels[0], labels[1], limits=(0.0, 1.0), unit="attends")


def _attend(inputs: FigureInputs, noise: TokenNoise) -> list[AttentionParts]:
    network = _network(inputs)
    block = network.spec.block_size or 1
    num = min(inputs.batch["tokens"].shape[1], max(1, MAX_TOKENS // block) * block)
    x0 = inputs.batch["tokens"][:1, :num]
    noised = noise_sequence(network, x0, noise.schedule.sigma_at(TIME), noise.schedule, inputs.generator)
    attentions = [each.attention for each in network.transformer_blocks()]
    with torch.no_grad():
        documents = noise.documents(x0)
        return catch_attention(attentions, lambda: network(noised.x, noised.sigma, documents=documents))


def _network(inputs: FigureInputs) -> DLM:
    network = inputs.network
    assert isinstance(network, DLM)
    return network
