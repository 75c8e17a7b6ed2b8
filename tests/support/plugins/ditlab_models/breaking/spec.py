"""Specs of a family for tests: the DiT, whose objective fails at a set step in a set worker."""

from typing import Literal

from ditlab_models.contract import Spec
from ditlab_models.dit.spec import DiTObjectiveSpec, DiTSpec


class BreakingSpec(DiTSpec):
    """The DiT."""

    family: Literal["breaking"] = "breaking"  # type: ignore[assignment]
    """For tests."""


class Fault(Spec):
    """The part that breaks, and its place."""

    kind: Literal["none", "nan", "forward", "backward", "bug", "leak", "tell", "away", "host"] = (
        "none"
    )
    """NaN; out of memory, forward or backward; an exception; an exception that tells
    secrets, or tells the network's settings; one that does not come back from building, once;
    one that fills the host's memory."""
    step: int = 5
    """Counted from 1."""
    rank: int = 1
    """The worker."""
    above: int = 0
    """Breaks only passes of more samples than this."""
    mib: int = 0
    """Memory of the host to take, in MiB."""


class BreakingObjectiveSpec(DiTObjectiveSpec):
    """Velocity regression with a fault."""

    fault: Fault = Fault()
    """The fault."""
