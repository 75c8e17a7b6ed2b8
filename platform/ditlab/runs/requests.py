"""Requests to a run in training (`ditlab ask`): a file each in the run's folder, found beside its steps and answered.

A request is open from its file on until its answer is there, so that one which a killed process had begun is done again
by the next attempt. Files are `00000003.json` and `00000003.answer.json`.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ditlab.errors import first_line
from ditlab.home import RunFolder
from ditlab.progress import ignore
from ditlab.receipts.records import STOP_VERB
from ditlab.secrets import hide
from ditlab.storage.files import write_durably
from ditlab.storage.plain_files import open_for_append, read_plain

LOOK_INTERVAL = 0.5
"""Seconds between two looks for requests, off the training thread."""
_STATE_INTERVAL = 1.0  # seconds between two looks at the run that is to answer
_MOST_BYTES = 1 << 20
_MOST_ANSWERS = 100
"""Answers that are kept, the newest."""
_NAME = re.compile(r"([0-9]{8})(\.answer)?\.json")
ASKED_TAG = "ditlab.asked"
"""Tag with the last request that was answered."""


@dataclass(frozen=True)
class Request:
    """One request."""

    number: Annotated[int, Field(ge=1, lt=10**8)]
    """Number in the run, from 1."""
    verb: Literal["sample", "evaluate", "checkpoint", "stop-after-evaluation"]

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True)
class RequestAnswer:
    """Answer to a request, or how far it has come."""

    number: Annotated[int, Field(ge=1, lt=10**8)]
    verb: str
    status: Literal["done", "not done", "open"]
    step: Annotated[int, Field(ge=0, lt=1 << 53)] = 0
    """Step after which it was done, or that the run had come to."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Metrics of an evaluation, under their MLflow names; None for NaN and infinities."""
    files: list[str] = field(default_factory=list)
    """Paths of a grid of samples: picture, text, captions."""
    checkpoint: str = ""
    """Path or URI."""
    message: str = ""
    """Sentence on why it was not done."""


_REQUEST, _ANSWER = TypeAdapter(Request), TypeAdapter(RequestAnswer)


def write_request(folder: RunFolder, verb: str) -> Request:
    """Write a request, or return the open one that asks for the same. Raises OSError where the disk refuses."""
    folder.requests.mkdir(exist_ok=True)
    with os.fdopen(open_for_append(folder.requests / "lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for request in open_requests(folder):
            if request.verb == verb:
                return request
        request = Request(max([0, *_numbers(folder)]) + 1, verb)  # type: ignore[arg-type]
        _write(_path(folder, request.number, ".json"), asdict(request))
    return request


def open_requests(folder: RunFolder, warn: Callable[[str], None] = ignore) -> list[Request]:
    """Return the requests without an answer, in their order. `warn` receives a sentence on each that cannot be read."""
    answered, found = set(_numbers(folder, ".answer")), []
    for number in sorted(set(_numbers(folder, None)) - answered):
        path = _path(folder, number, ".json")
        try:
            request = _REQUEST.validate_json(read_plain(path, _MOST_BYTES))
            if request.number != number:
                raise ValueError(f"it is request {request.number}")
            found.append(request)
        except FileNotFoundError:  # answered meanwhile
            continue
        except (OSError, ValueError) as error:
            reason = "no request" if isinstance(error, ValidationError) else first_line(error)
            warn(f"the request {path} is damaged ({reason}) and passed over; ask again.")
    return found


def withdraw(folder: RunFolder, number: int) -> None:
    """Remove a request."""
    _path(folder, number, ".json").unlink(missing_ok=True)


def withdraw_stops(folder: RunFolder) -> None:
    """Withdraw open requests to stop the run: whoever starts it again wants it to go on. Raises nothing."""
    with suppress(OSError):
        for request in open_requests(folder):
            if request.verb == STOP_VERB:
                withdraw(folder, request.number)


def read_answer(folder: RunFolder, number: int) -> RequestAnswer | None:
    """Return the answer to a request; None where there is none yet."""
    with suppress(OSError, ValueError):
        return _ANSWER.validate_json(read_plain(_path(folder, number, ".answer.json"), _MOST_BYTES))
    return None


class RequestDesk:
    """Finds the requests to a run while it trains, and writes the answers; in the process of the first worker.

    A thread looks into the folder, so that no step waits for a disk.
    """

    def __init__(
        self, folder: RunFolder, warn: Callable[[str], None], refused: Mapping[str, str],
    ) -> None:  # fmt: skip
        """`refused`: a sentence by verb that this run does not do."""
        self._folder, self._warn, self._refused = folder, warn, refused
        self._open: list[Request] = []
        self._begun: dict[int, RequestAnswer] = {}
        """Requests that this process has begun and not answered, by number, with what is known of their answers."""
        self._answered: set[int] = set()
        self._current = 0
        self._warned: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ditlab-requests", daemon=True)

    def start(self) -> None:
        """Look for the first time, and begin to watch."""
        self._look()
        self._thread.start()

    def next(self) -> Request | None:
        """Return the oldest request that is open and not begun."""
        return next((each for each in self._open if each.number not in {*self._begun, *self._answered}), None)

    def begin(self, number: int, verb: str, step: int) -> None:
        """Take note that a request is begun after a step."""
        self._current, self._begun[number] = number, RequestAnswer(number, verb, "done", step)

    def add_files(self, files: Sequence[Path]) -> None:
        """Take note of the files that the request has made which was begun last."""
        self._begun[self._current].files.extend(str(file) for file in files)

    def done(self, metrics: Mapping[str, float], problem: str = "") -> RequestAnswer | None:
        """Answer the request that was begun last, and return the answer; None for one that waits for a checkpoint."""
        known = self._begun[self._current]
        known.metrics.update({name: value if math.isfinite(value) else None for name, value in metrics.items()})
        if known.verb in ("checkpoint", STOP_VERB):
            return None
        return self._answer(self._current, **({"status": "not done", "message": problem} if problem else {}))

    def saved(self, step: int, location: str = "", problem: str = "") -> list[RequestAnswer]:
        """Answer the requests that wait for the checkpoint of a step: it is complete, or has a `problem`."""
        failed = {"status": "not done", "message": problem} if problem else {"checkpoint": location}
        return [self._answer(number, **failed) for number, known in [*self._begun.items()] if known.step == step]

    def close(self, reason: str = "") -> None:
        """Stop to watch. With a `reason` the run does not go on: what was begun, and what is open, is not done."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if reason:
            self.fail(reason)
            self._look()
            while request := self.next():
                self._refuse(request, reason)

    def fail(self, reason: str) -> None:
        """Answer what was begun and is not answered: the run has failed, in that or beside it, for a `reason`."""
        for number in [*self._begun]:
            self._answer(number, status="not done", message=reason)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_INTERVAL):
            self._look()

    def _look(self) -> None:
        """Read the folder; answer what is not done in any case."""
        with suppress(OSError):
            found = []
            for request in open_requests(self._folder, self._warn_once):
                number, why = request.number, self._refused.get(request.verb, "")
                if not why:
                    found.append(request)
                elif number not in self._answered:
                    self._refuse(request, why)
            self._open = found

    def _refuse(self, request: Request, why: str) -> None:
        self._begun[request.number] = RequestAnswer(request.number, request.verb, "done")
        self._answer(request.number, status="not done", message=why)

    def _answer(self, number: int, **changes: Any) -> RequestAnswer:
        self._answered.add(number)
        known = self._begun.pop(number)
        answer = RequestAnswer(**{**asdict(known), **changes})
        with self._writing():
            _write(_path(self._folder, number, ".answer.json"), asdict(answer) | {"message": hide(answer.message)})
            withdraw(self._folder, number)
            for old in sorted(_numbers(self._folder, ".answer"))[:-_MOST_ANSWERS]:
                _path(self._folder, old, ".answer.json").unlink(missing_ok=True)
        return answer

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._warn(message)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn a refusal of the disk in the block into a warning: answers must not cost a step."""
        try:
            yield
        except OSError as error:
            self._warn_once(f"{self._folder.requests} cannot be written ({first_line(error)}); training goes on.")


def _numbers(folder: RunFolder, ending: str | None = "") -> list[int]:
    """Numbers of the files: of requests (None), of answers (`.answer`), of both (empty)."""
    try:
        names = os.listdir(folder.requests)  # noqa: PTH208 (no Path for each: it is called twice a second)
    except FileNotFoundError:
        return []
    found = (_NAME.fullmatch(name) for name in names)
    return [int(match[1]) for match in found if match and (ending == "" or match[2] == ending)]


def _path(folder: RunFolder, number: int, ending: str) -> Path:
    return folder.requests / f"{number:08d}{ending}"


def _write(path: Path, fields: Mapping[str, Any]) -> None:
    write_durably(path, json.dumps(fields, allow_nan=False).encode() + b"\n")
