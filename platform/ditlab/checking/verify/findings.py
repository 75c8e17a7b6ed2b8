"""Findings of a verification: what was checked of a run, and what came of it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import RenderableType
from rich.text import Text

from ditlab.reports.formatting import terminal_table

Verdict = Literal["holds", "off", "not checked"]
_STYLES = {"holds": "green", "off": "bold red", "not checked": "yellow"}


@dataclass(frozen=True)
class VerifiedPart:
    """One part of a run that was verified, or could not be."""

    part: str
    """`receipts`, `checkpoints`, `averages`, `journal`, `spec`, `data`, `samples`, `replay` or `code`."""
    verdict: Verdict
    sentence: str
    """Description of what was checked, or of what is off, with the place and the remedy."""


@dataclass(frozen=True)
class RunVerification:
    """Parts of a run that a stranger can rely on, and those that are off or unknown."""

    run_id: str
    name: str
    parts: tuple[VerifiedPart, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        """True if nothing is off."""
        return all(part.verdict != "off" for part in self.parts)

    def terminal_lines(self) -> Iterator[RenderableType]:
        """Return the table for a terminal, and a closing sentence."""
        yield Text(f"run {self.run_id} ({self.name})")
        rows = ((part.part, Text(part.verdict, _STYLES[part.verdict]), part.sentence) for part in self.parts)
        yield terminal_table({"part": "text", "verdict": "id", "what was checked": "text"}, rows)
        yield Text(self.conclusion)

    @property
    def conclusion(self) -> str:
        """Sentences on what a stranger can rely on."""
        off = sorted({part.part for part in self.parts if part.verdict == "off"})
        if off:
            return f"Off: {', '.join(off)}. The run's record and its files do not belong together."
        held = {part.part for part in self.parts if part.verdict == "holds"}
        unknown = sorted({part.part for part in self.parts if part.verdict == "not checked"} - held)
        sentences = []
        if {"receipts", "checkpoints"} <= held:
            sentences.append("The kept weights come from the steps that the receipts list, and no file was altered.")
        if "samples" in held:
            sentences.append("The steps that were looked at consumed what the spec, the order and the data say.")
        if "replay" in held:
            sentences.append("Steps done again here gave the recorded losses.")
        if unknown:
            sentences.append(f"Nothing is said of: {', '.join(unknown)}.")
        sentences.append("That the record was not made up as a whole, no check of its files can show; replays can.")
        return " ".join(sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return the verification in JSON's types."""
        return {
            "run_id": self.run_id, "name": self.name, "holds": self.holds, "seconds": round(self.seconds, 3),
            "parts": [asdict(part) for part in self.parts], "conclusion": self.conclusion,
        }  # fmt: skip
