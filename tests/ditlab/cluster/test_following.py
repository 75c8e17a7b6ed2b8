"""The log of a job arrives whole, whatever its stream does not take."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from ditlab.cli.train.commands import JobLines
from ditlab.cluster import jobs
from ditlab.cluster.jobs import JobServer

BEGIN = "step 1\nstep 2\n"
LONG = "x" * (5 << 20) + "\n"
END = 'step 3\n{"run_id": "43b74af7"}\n'


class Client:
    """Ray's client: streams what `streams` hold, one after the other, and ends in `states`."""

    def __init__(self, log, streams, states):
        self.log = log
        self.streams = list(streams)
        self.states = list(states)
        self.num_whole = 0

    async def tail_job_logs(self, job):
        texts = self.streams.pop(0) if self.streams else []
        for text in texts:
            if isinstance(text, Exception):
                raise text
            yield text

    def get_job_info(self, job):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return SimpleNamespace(status=SimpleNamespace(value=state), message="", driver_exit_code=0)

    def get_job_logs(self, job):
        self.num_whole += 1
        return self.log


TOO_LONG = RuntimeError("WebSocket error for job a: Message size 5242881 exceeds limit 4194304")
LOG = BEGIN + LONG + END
ROWS = {
    "a line that is too long": ([[BEGIN, TOO_LONG]], ["SUCCEEDED"]),
    "closed without a word there": ([[BEGIN]], ["SUCCEEDED"]),
    "while the job runs": ([[BEGIN, TOO_LONG], [BEGIN, TOO_LONG]], ["RUNNING", "SUCCEEDED"]),
    "the first line of all": ([[TOO_LONG]], ["FAILED"]),
    "an outage before": ([[OSError("away")], [BEGIN, TOO_LONG]], ["RUNNING", "SUCCEEDED"]),
    "a stream that is whole": ([[BEGIN, LONG, END]], ["SUCCEEDED"]),
}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    async def sleep(_):
        return

    monkeypatch.setattr(asyncio, "sleep", sleep)


@pytest.mark.parametrize("row", ROWS)
def test_each_text_once(row):
    streams, states = ROWS[row]
    said = []
    end = JobServer("http://127.0.0.1:8265", Client(LOG, streams, states)).follow("a", said.append)
    assert "".join(said) == LOG and end.status == states[-1]


def test_the_json_line_of_a_log_with_a_long_line(capsys):
    client = Client(LOG, [[BEGIN, TOO_LONG]], ["SUCCEEDED"])
    lines = JobLines(as_json=True)
    JobServer("http://127.0.0.1:8265", client).follow("a", lines.show)
    lines.end()
    assert json.loads(lines.json_line) == {"run_id": "43b74af7"}
    assert "x" * (5 << 20) in capsys.readouterr().err


def test_a_job_server_that_is_gone_is_given_up(monkeypatch):
    client = Client("", [], ["RUNNING"])
    client.get_job_info = lambda _: (_ for _ in ()).throw(ConnectionError("gone"))
    monkeypatch.setattr(jobs, "AWAY_TIMEOUT", 3.0)
    with pytest.raises(jobs.RunFailed, match="does not answer any more"):
        JobServer("http://127.0.0.1:8265", client).follow("a", pytest.fail)
