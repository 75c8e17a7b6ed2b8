"""Figure of attention over the patches of an image: maps by query, layer and head, and heads beside plain patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from denoisers.figure_kinds.sequence_attention import distance_by_layer
from denoisers.figures import Figure, Heatmap, ImageGrid, Lines, Panel

MAX_LAYERS = 6
MAX_HEADS = 8


def image_attention_panels(layers: Sequence[np.ndarray], picture: np.ndarray, rows: int, columns: int) -> list[Panel]:
    """Draw maps (H, N, N) of three query patches for every layer and head, and each layer's distance.

    picture: (height, width) grey, in [0, 1].
    """
    queries = query_patches(picture, rows, columns)
    panels: list[Panel] = [_query_panel(layers, picture, at, rows, columns, name) for name, at in queries.items()]
    return [*panels, patch_distance_lines(layers, rows, columns)]


def query_patches(picture: np.ndarray, rows: int, columns: int) -> dict[str, int]:
    """Query patches by name: the centre, the brightest one, the top left corner."""
    height, width = picture.shape[0] // rows, picture.shape[1] // columns
    ink = picture.reshape(rows, height, columns, width).mean(axis=(1, 3)).flatten()
    centre = rows // 2 * columns + columns // 2
    return {"the centre": centre, "the brightest patch": int(ink.argmax()), "the corner": 0}


def patch_distance_lines(layers: Sequence[np.ndarray], rows: int, columns: int) -> Lines:
    """Draw the mean distance, in patches, between a query and what it attends to, by layer."""
    return distance_by_layer(layers, patch_distance(rows, columns), "patches")


def patch_distance(rows: int, columns: int) -> np.ndarray:
    """Euclidean distance of every two patches, (N, N)."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    distance: np.ndarray = np.hypot(row[:, None] - row, column[:, None] - column)
    return distance


def plain_patterns(rows: int, columns: int) -> Mapping[str, np.ndarray]:
    """Weights (N, N) that a head might have: rows sum to 1."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    down, across = row[:, None] - row, column[:, None] - column
    same_row, same_column = (down == 0).astype(float), (across == 0).astype(float)
    patterns = {
        "uniform": np.ones((rows * columns, rows * columns)),
        "itself": np.eye(rows * columns),
        "neighbours": np.exp(-(down**2 + across**2) / 2),
        "row": same_row,
        "column": same_column,
        "cross": np.maximum(same_row, same_column),
        "diagonals": (np.abs(down) == np.abs(across)).astype(float),
        "border": np.broadcast_to(
            (row == 0) | (row == rows - 1) | (column == 0) | (column == columns - 1), (rows * columns,) * 2
        ).astype(float),
    }
    return {name: values / values.sum(axis=-1, keepdims=True) for name, values in patterns.items()}


def patterns_figure(layers: Sequence[np.ndarray] | None, rows: int, columns: int) -> Figure:
    """Draw plain patterns seen from the centre, and with layers' weights the similarity of every head to each."""
    patterns = plain_patterns(rows, columns)
    centre = (rows // 2, columns // 2)
    query = centre[0] * columns + centre[1]
    panels: list[Panel] = [
        Heatmap(
            values[query].reshape(rows, columns), name, "column", "row", mark=centre, unit="weight",
            limits=(0.0, float(values[query].max())),
        )
        for name, values in patterns.items()
    ]  # fmt: skip
    title = "Plain patterns of attention, seen from the marked patch"
    if layers is not None:
        names = [f"{number + 1}.{head + 1}" for number, each in enumerate(layers) for head in range(len(each))]
        similarity = np.array(
            [[_cosine(head, values) for values in patterns.values()] for each in layers for head in each]
        )
        panels.append(
            Heatmap(
                similarity.T,
                "What the heads look like",
                "layer.head",
                "pattern",
                limits=(0.0, 1.0),
                x_names=names,
                y_names=list(patterns),
                unit="cosine",
            )
        )
        title = "Plain patterns of attention, and how similar the trained heads are to each"
    return Figure(panels, title=title, columns=3 if len(panels) > 8 else 4)


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float((first * second).sum() / (np.linalg.norm(first) * np.linalg.norm(second)))


def _query_panel(
    layers: Sequence[np.ndarray], picture: np.ndarray, query: int, rows: int, columns: int, name: str
) -> ImageGrid:
    chosen = sorted({round(layer) for layer in np.linspace(0, len(layers) - 1, MAX_LAYERS)})
    heads = range(min(len(layers[0]), MAX_HEADS))
    images = [_overlay(layers[layer][head, query], picture, query, rows, columns) for layer in chosen for head in heads]
    captions = [f"layer {layer + 1}, head {head + 1}" for layer in chosen for head in heads]
    return ImageGrid(np.stack(images), captions, len(heads), title=f"Seen from {name} (patch {query})")


def _overlay(weights: np.ndarray, picture: np.ndarray, query: int, rows: int, columns: int) -> np.ndarray:
    """The picture, dimmed, with a row of attention weights (N,) in orange and the query patch in blue: RGB."""
    height, width = picture.shape[0] // rows, picture.shape[1] // columns
    heat = (weights / weights.max()).reshape(rows, columns).repeat(height, axis=0).repeat(width, axis=1)
    colour = 0.5 * picture[..., None].repeat(3, axis=2) * (1 - heat[..., None])
    colour[..., 0] += heat * (0.55 + 0.45 * picture)
    colour[..., 1] += heat * (0.25 + 0.2 * picture)
    top, left = query // columns * height, query % columns * width
    colour[top : top + height, left : left + width, 2] = 1
    return colour.clip(0, 1)
