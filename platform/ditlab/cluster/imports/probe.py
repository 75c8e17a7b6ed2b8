"""Probe of a node for an import: what it sees of the folders. It travels by value: the node may lack DiTLab."""

from importlib.util import find_spec
from pathlib import Path


def probe_node(probe: str, content: str, source: str | None) -> list[str]:
    """Return what a node lacks: `ditlab`, `out` (the probe's file is not there), `source` (a path; None: a URI)."""
    lacks = [] if find_spec("ditlab") else ["ditlab"]
    try:
        if Path(probe).read_text() != content:
            lacks.append("out")
    except OSError:
        lacks.append("out")
    if source is not None and not Path(source).exists():
        lacks.append("source")
    return lacks
