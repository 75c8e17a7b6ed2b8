"""Requests of a person to a run in training, and the wait for their answers."""

from __future__ import annotations

import time
from collections.abc import Callable

from ditlab.api.run import Run
from ditlab.errors import UserError, cannot_write
from ditlab.home import RunFolder
from ditlab.progress import ignore
from ditlab.receipts.records import STOP_VERB, VERBS
from ditlab.runs.locks import running_state
from ditlab.runs.requests import RequestAnswer, post_request
from ditlab.tracking.records import read_record
from ditlab.training.inbox import Inbox

_POLL_INTERVAL = (
    0.25  # seconds between two reads of the answer, and of the state of the run that gives it
)
_INSTEAD = {
    "sample": "`ditlab sample {0}` draws from its newest checkpoint",
    "evaluate": "`ditlab evaluate {0}` measures its newest checkpoint",
    "checkpoint": "`ditlab runs show {0}` lists its checkpoints",
    STOP_VERB: "`ditlab evaluate {0}` measures its newest checkpoint",
}


def ask_run(run: Run, verb: str, wait: float | None = None) -> RequestAnswer:
    """Ask a run that trains in another process for `sample`, `evaluate`, `checkpoint` or
    `stop-after-evaluation`.

    `wait`: seconds after which an answer that has not come is `open`; None: until the run has
    answered or ended. Raises UserError for a run that is not in training.
    """
    return ask(run.folder, verb, wait)


def answer_lines(answer: RequestAnswer) -> list[str]:
    """Return an answer as lines for people."""
    if answer.status != "done":
        return [answer.message]
    values = []
    for name, value in answer.metrics.items():
        shown = "NaN" if value is None else f"{value:.5g}"
        values.append(f"  {name} {shown}")
    made = [*answer.files, *filter(None, [answer.checkpoint])]
    return [f"{answer.verb}: done at step {answer.step:,}", *values, *made]


def refusal(folder: RunFolder, verb: str) -> str:
    """Return why a run cannot be asked, and what to do instead; empty for a run that may be in
    training.
    """
    record = read_record(folder)
    status: str = record.status
    if status == "running":
        running = running_state(folder, record)
        if running.state != "lost":
            return ""
        status = f"lost ({running.text})"
    begin = (
        f"run {folder.run_id} ({record.name}) is {status}, and only a run in training can be asked"
    )
    goes_on = f"; `{folder.resume_command}` goes on" if status != "finished" else ""
    return f"{begin}: {_INSTEAD[verb].format(folder.run_id)}{goes_on}."


def ask(
    folder: RunFolder, verb: str, wait: float | None = None, on_wait: Callable[[str], None] = ignore
) -> RequestAnswer:
    """Ask a run in training for one of `VERBS`, and wait `wait` seconds for the answer (None: until
    the run ends).

    An answer that has not come by then is `open`; the same request again waits on. `on_wait`
    receives what is waited for. Raises UserError for a run that is not in training, an unknown
    verb, a folder that cannot be written, and an answer that cannot be read.
    """
    if verb not in VERBS:
        raise UserError(f"{verb!r} is no request to a run; write one of {', '.join(VERBS)}.")
    why = refusal(folder, verb)
    if why:
        raise UserError(why)
    try:
        request = post_request(folder, verb)
    except OSError as error:
        raise cannot_write(folder.requests, error, "correct that folder") from None
    inbox = Inbox(folder.requests)
    begin = time.monotonic()
    while True:
        why = refusal(folder, verb)
        on_wait(f"waiting for run {folder.run_id} to {verb}")
        # after the state of the run, which answers before it ends
        answer = inbox.read(request, RequestAnswer)
        if answer:
            return answer
        if why:
            # lost, with what it had begun
            if verb != STOP_VERB and read_record(folder).status == "running":
                why += " The request stays, and is done once the run goes on."
            else:
                inbox.remove(request)
            return RequestAnswer(*request, "not done", message=why)
        if wait is not None and time.monotonic() - begin >= wait:
            return RequestAnswer(
                *request, "open", message=_open_sentence(folder.run_id, verb, wait)
            )
        time.sleep(_POLL_INTERVAL)


def _open_sentence(run_id: str, verb: str, wait: float) -> str:
    """Return the sentence on a request that was not answered in `wait` seconds."""
    waited = f"there is no answer after {wait:g} s" if wait else "the request is there"
    return (
        f"{waited}; it is done at the end of a step, and `ditlab ask {run_id} {verb}` waits for it."
    )
