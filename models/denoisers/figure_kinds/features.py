"""Figures of principal components: of an image network's tokens, and of tables of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from denoisers.figures import Bars, Figure, ImageGrid, Panel, PointGroup, Points

NUM_PICTURES = 8
NUM_SHARES = 10


@dataclass(frozen=True)
class Components:
    """Principal components of vectors."""

    scores: np.ndarray
    """(num, components), in the order of falling variance."""
    shares: np.ndarray
    """Share of the variance of each component, (components,)."""


def principal_components(vectors: np.ndarray, num: int = NUM_SHARES) -> Components:
    """Compute the first components of vectors (num, D). The largest entry of each is positive, which fixes signs."""
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    left, spread, right = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(right[np.arange(len(right)), np.abs(right).argmax(axis=1)])
    signs[signs == 0] = 1
    total = max(float((spread**2).sum()), 1e-30)
    return Components((left * spread * signs)[:, :num], (spread**2 / total)[:num])


def token_features_figure(
    tokens: np.ndarray, rows: int, columns: int, pictures: np.ndarray, labels: Sequence[str], where: str
) -> Figure:
    """Draw the first three components of tokens (B, rows * columns, D) as colours over their places, and mean tokens.

    `pictures` (B, height, width[, 3]) are what the network sees; `labels` (B) or none colour the mean tokens.
    """
    num = min(NUM_PICTURES, len(tokens))
    found = principal_components(tokens.reshape(-1, tokens.shape[-1]))
    colours = np.zeros((len(found.scores), 3))
    shown = found.scores[:, :3]
    low, high = np.quantile(shown, 0.01, axis=0), np.quantile(shown, 0.99, axis=0)
    colours[:, : shown.shape[1]] = ((shown - low) / np.maximum(high - low, 1e-12)).clip(0, 1)
    maps = colours.reshape(len(tokens), rows, columns, 3)[:num]
    height, width = pictures.shape[1:3]
    maps = maps.repeat(height // rows, axis=1).repeat(width // columns, axis=2)
    seen = pictures[:num] if pictures.ndim == 4 else pictures[:num, ..., None].repeat(3, axis=3)
    title = "What the network sees, and its tokens' first three components as red, green and blue"
    panels: list[Panel] = [
        ImageGrid(np.concatenate((seen, maps)), columns=num, title=title),
        _by_label(tokens.mean(axis=1), labels),
        shares_bars(found.shares),
    ]
    return Figure(panels, title=f"Principal components of the tokens {where}", columns=1 if num > 4 else 2)


def shares_bars(shares: np.ndarray) -> Bars:
    """Draw each component's share of the variance."""
    texts = [f"{share:.0%}" for share in shares]
    return Bars([str(number + 1) for number in range(len(shares))], shares, "Variance by component",
                "share of the variance", "component", texts)  # fmt: skip


def _by_label(means: np.ndarray, labels: Sequence[str]) -> Points:
    scores = principal_components(means, 2).scores
    scores = np.pad(scores, ((0, 0), (0, 2 - scores.shape[1])))
    groups = []
    for label in sorted(set(labels)) or [""]:
        chosen = np.array([each == label for each in labels]) if labels else np.ones(len(means), dtype=bool)
        groups.append(PointGroup(scores[chosen, 0], scores[chosen, 1], label))
    title = "Mean token of each image, by class" if labels else "Mean token of each image"
    return Points(groups, title, "first component", "second component")


def vectors_figure(vectors: np.ndarray, texts: Sequence[str], what: str, num_shown: int = 200) -> Figure:
    """Draw the first two components of vectors (num, D) with the text of each, and the variance by component."""
    found = principal_components(vectors)
    scores = np.pad(found.scores, ((0, 0), (0, max(0, 2 - found.scores.shape[1]))))[:num_shown]
    shown = [text or "·" for text in texts[:num_shown]]
    panel = Points(
        [PointGroup(scores[:, 0], scores[:, 1], texts=shown)], f"The first {len(shown)} of {len(vectors)}",
        "first component", "second component",
    )  # fmt: skip
    return Figure([panel, shares_bars(found.shares)], title=f"Principal components of {what}")
