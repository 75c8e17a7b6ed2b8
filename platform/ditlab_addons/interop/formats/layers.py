"""Rules that the formats of published weights have in common."""

from ditlab.weights.rules import Rule, Shapes, rename


def rename_layers(*pairs: tuple[str, str]) -> list[Rule]:
    """Give layers other names, published and ours: the weight and the bias of each."""
    return [
        rename(f"{theirs}.{kind}", f"{ours}.{kind}")
        for theirs, ours in pairs
        for kind in ("weight", "bias")
    ]


def axes(shapes: Shapes, name: str, num: int) -> tuple[int, ...]:
    """Return the sizes of a published tensor's axes. Raises ValueError for another number of axes,
    and for an axis of none.
    """
    shape = shapes[name]
    if len(shape) != num or 0 in shape:
        raise ValueError(
            f"{name} has shape {shape}, and {num} axes are needed; name whole weights of a known "
            "format."
        )
    return shape
