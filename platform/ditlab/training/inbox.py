"""Inbox of a run: requests to its workers or to its evaluator, and the answers, as small files that
appear whole.

Whichever process is killed, a request stands until its answer is there, and the answer until
somebody removes it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ditlab.errors import UserError, first_line
from ditlab.receipts.records import VERBS
from ditlab.storage.files import write_durably

EVALUATE = "evaluate"
"""Verb of the requests to an evaluator; their numbers are the steps of checkpoints."""
_NAME = re.compile(rf"([0-9]{{8,}})-({'|'.join(VERBS)})\.json")
AnswerT = TypeVar("AnswerT")


class Request(NamedTuple):
    """A request; its files are `NUMBER-VERB.json` and `NUMBER-VERB.answer.json`."""

    number: int
    verb: str


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


@dataclass(frozen=True)
class Inbox:
    """Requests and answers in one folder, which those who ask and those who answer share."""

    folder: Path

    def post(self, request: Request) -> None:
        """Write a request, in place of an equal one and its answer. Raises OSError as the disk
        does.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(request, ".answer").unlink(missing_ok=True)
        write_durably(self._path(request), b"{}\n")

    def answer(self, request: Request, answer: Any) -> None:
        """Write the answer, a dataclass, to a request that still stands. Raises OSError as the disk
        does.
        """
        if self._path(request).exists():
            write_durably(self._path(request, ".answer"), json.dumps(asdict(answer)).encode())

    def listed(self) -> dict[Request, bool]:
        """Return the requests by number, each with True if it has an answer."""
        try:
            names = {path.name for path in self.folder.iterdir()}
        except OSError:
            return {}
        requests = [
            Request(int(match[1]), match[2])
            for match in map(_NAME.fullmatch, sorted(names))
            if match
        ]
        return {request: self._path(request, ".answer").name in names for request in requests}

    def newest(self) -> Request | None:
        """Return the request of the highest number; None where it has an answer, or nothing is
        there.
        """
        listed = self.listed()
        newest = max(listed, default=None)
        if newest and not listed[newest]:
            return newest
        return None

    def read(self, request: Request, kind: type[AnswerT]) -> AnswerT | None:
        """Return the answer to a request; None where there is none. Raises UserError where it
        cannot be read.
        """
        path = self._path(request, ".answer")
        try:
            return kind(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, TypeError, ValueError) as error:
            raise UserError(
                f"the answer {path} cannot be read ({first_line(error)}); delete it."
            ) from None

    def remove(self, request: Request) -> None:
        """Remove a request, then its answer."""
        self._path(request).unlink(missing_ok=True)
        self._path(request, ".answer").unlink(missing_ok=True)

    def _path(self, request: Request, ending: str = "") -> Path:
        return self.folder / f"{request.number:08d}-{request.verb}{ending}.json"
