"""Names of kept averages in a state and in files."""

START = "averages.start"
"""Scalar of a state: updates that were applied before the averages began."""
FOLDER = "averages"
"""Folder of the snapshots in that of a run's checkpoints."""
UPDATES = "adam_step"
"""Scalar of a state: updates that were applied."""
_PREFIX = "power_"


def field_of(length: float) -> str:
    """Return the name of an average among the fields of a state: `power_0.05`."""
    return f"{_PREFIX}{length:g}"


def length_of(field: str) -> float | None:
    """Return the relative length of a field that `field_of` named; None for another field."""
    try:
        return float(field.removeprefix(_PREFIX)) if field.startswith(_PREFIX) else None
    except ValueError:
        return None
