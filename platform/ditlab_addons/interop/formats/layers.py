"""Rules that the formats of published weights have in common."""

from ditlab.weights.rules import Rule, rename


def rename_layers(*pairs: tuple[str, str]) -> list[Rule]:
    """Give layers other names, published and ours: the weight and the bias of each."""
    return [
        rename(f"{theirs}.{kind}", f"{ours}.{kind}")
        for theirs, ours in pairs
        for kind in ("weight", "bias")
    ]
