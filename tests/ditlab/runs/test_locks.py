"""Locks of a run and of its journals, as workers of an earlier launch hold them for a while."""

import threading
from contextlib import ExitStack

from ditlab.errors import RunFailed
from ditlab.home import RunFolder
from ditlab.runs import locks
from ditlab.runs.locks import lock_journal
from support.damage import refused


def test_a_wait_for_a_journal_warns_once_and_ends_when_it_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "WARN_AFTER", 0.2)
    folder, warnings = RunFolder(tmp_path), []
    first = ExitStack()
    first.enter_context(lock_journal(folder))
    refusal = r"another worker still writes .*journal.jsonl after 0 s"
    with refused(refusal, RunFailed), lock_journal(folder, timeout=0):
        pass
    with lock_journal(folder, node=1, timeout=0):  # another node has a journal of its own
        pass
    release = threading.Timer(0.8, first.close)
    release.start()
    with lock_journal(folder, timeout=60, warn=warnings.append):
        release.join()
    assert len(warnings) == 1 and "waiting up to 60 s for its end" in warnings[0]
