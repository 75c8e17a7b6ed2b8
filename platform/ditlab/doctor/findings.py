"""Findings of `ditlab doctor`: a line for each check, and a last sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """Result of one check: a line of `ditlab doctor`."""

    verdict: Literal["ok", "note", "missing"]
    what: str
    found: str
    remedy: str = ""


def last_sentence(findings: Sequence[Finding]) -> str:
    """Sentence that sums up the findings on a cluster."""
    missing = list(dict.fromkeys(each.what for each in findings if each.verdict == "missing"))
    notes = list(dict.fromkeys(each.what for each in findings if each.verdict == "note"))
    if missing:
        return f"not ready for a long run: mend {', '.join(missing)}."
    return f"ready for a long run (worth a look: {', '.join(notes)})." if notes else "ready for a long run."
