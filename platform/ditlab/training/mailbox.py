"""Mailbox of evaluations beside the training: requests and answers in a folder that workers and evaluator share.

Files that are replaced whole: whichever process is killed, a request stands until its answer is in the journal.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ditlab.storage.files import write_durably
from ditlab.storage.plain_files import MIB, read_plain


@dataclass(frozen=True)
class EvaluationRequest:
    """Step to evaluate, and earlier ones, which are passed over once it has an answer."""

    step: int
    older: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluationAnswer:
    """Evaluation of a checkpoint, or the reason why there is none."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics by their MLflow names; NaN and infinities are kept."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of the measurements."""
    pictures: bool = False
    """True if a sample grid lies in the run's folder."""
    warnings: list[str] = field(default_factory=list)
    error: str = ""
    """Clause; empty for an evaluation."""


_REQUEST, _ANSWER = TypeAdapter(EvaluationRequest), TypeAdapter(EvaluationAnswer)


@dataclass(frozen=True)
class EvaluationMailbox:
    """Requests and answers of one run, in a folder that its workers and its evaluator share."""

    folder: Path

    def ask(self, request: EvaluationRequest) -> None:
        """Replace the request. Raises OSError as the disk does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_durably(self.folder / "request.json", json.dumps(asdict(request)).encode())

    def withdraw(self) -> None:
        """Remove the request."""
        (self.folder / "request.json").unlink(missing_ok=True)

    def request(self) -> EvaluationRequest | None:
        """Return what is asked for; None for nothing."""
        with suppress(OSError, ValidationError):
            return _REQUEST.validate_json(read_plain(self.folder / "request.json", MIB))
        return None

    def answer(self, answer: EvaluationAnswer) -> None:
        """Answer a request, durably. Raises OSError as the disk does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_durably(self.folder / f"answer-{answer.step:08d}.json", json.dumps(asdict(answer)).encode())

    def answers(self) -> list[EvaluationAnswer]:
        """Return the answers that nobody has dropped yet, by step."""
        found = []
        for path in sorted(self.folder.glob("answer-*.json")):
            with suppress(OSError, ValidationError):
                found.append(_ANSWER.validate_json(read_plain(path, MIB)))
        return found

    def has_answer(self, step: int) -> bool:
        """Return True if an answer for a step waits to be taken in."""
        return (self.folder / f"answer-{step:08d}.json").exists()

    def drop(self, step: int) -> None:
        """Remove an answer."""
        (self.folder / f"answer-{step:08d}.json").unlink(missing_ok=True)
