"""Figure of one attention head, step by step (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1).

N tokens, D width, K width of a head.
"""

from __future__ import annotations

import numpy as np

from denoisers.figure_kinds.attention_parts import AttentionParts
from denoisers.figures import Bars, Figure, Heatmap, Panel

MAX_TOKENS = 49
MAX_BARS = 12


def attention_steps_figure(
    parts: AttentionParts, layer: str, scale: str = "Q Kᵀ / √K", query: int | None = None, tokens: str = "token"
) -> Figure:
    """Draw the input, queries, keys and values of the head with the sharpest weights, its scores, weights and outputs.

    `query` (None: the middle token) is the token whose largest weights are drawn as bars. Of a longer sequence the
    first 49 tokens are drawn; weights are those of the whole sequence.
    """
    head = int(parts.weights.max(axis=-1).mean(axis=-1).argmax())
    num = min(MAX_TOKENS, parts.x.shape[0])
    query = num // 2 if query is None or query >= num else query
    q, k, v, mixed = (each[head] for each in (parts.q, parts.k, parts.v, parts.mixed))
    width = q.shape[-1]
    shape = f"{parts.x.shape[0]} x {width}"
    entry = "entry of the head"
    panels: list[Panel] = [
        _matrix(parts.x[:num], f"Input X ({parts.x.shape[0]} x {parts.x.shape[1]})", "entry of the token", tokens),
        _matrix(q[:num], f"Queries Q ({shape})", entry, tokens),
        _matrix(k[:num], f"Keys K ({shape})", entry, tokens),
        _matrix(v[:num], f"Values V ({shape})", entry, tokens),
        _matrix(parts.scores[head, :num, :num], f"Scores {scale}", f"key ({tokens})", f"query ({tokens})"),
        Heatmap(
            parts.weights[head, :num, :num], "Weights A = softmax of the scores", f"key ({tokens})",
            f"query ({tokens})", unit="weight",
        ),
        _matrix(mixed[:num], f"Output A V ({shape})", entry, tokens),
        _bars(parts.weights[head, query], query, tokens),
    ]  # fmt: skip
    plural = f"{tokens}es" if tokens.endswith("h") else f"{tokens}s"
    count = f"the first {num} of {parts.x.shape[0]} {plural}" if num < parts.x.shape[0] else f"{num} {plural}"
    return Figure(
        panels,
        title=f"Attention step by step: {layer}, head {head + 1} of {len(parts.q)}",
        columns=2,
        alt=f"Eight panels of one attention head over {count}: input, queries, keys, values, scores, softmax weights, "
        f"outputs, and the largest weights of {tokens} {query}.",
    )


def _matrix(values: np.ndarray, title: str, x_label: str, tokens: str) -> Heatmap:
    rows, columns = values.shape
    return Heatmap(values, title, x_label, tokens, (0, columns, rows, 0), diverging=True, unit="value")


def _bars(weights: np.ndarray, query: int, tokens: str) -> Bars:
    """Draw the largest weights of one query, largest first."""
    order = np.argsort(-weights, kind="stable")[:MAX_BARS]
    title = f"What {tokens} {query} attends to (these: {weights[order].sum():.0%})"
    return Bars([f"{tokens} {index}" for index in order], weights[order], title, "weight")
