"""Readers of a home's files: what commands learn from them. Each returns what it found, and says
what is wrong.
"""

import io
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ditlab.analysis.drawing import open_export
from ditlab.averages import PowerProfile
from ditlab.checkpoints.kept_averages import open_averages
from ditlab.data.named_stores import store_folder
from ditlab.data.stores.bucketed_store import open_store
from ditlab.data.text.tokenizer import open_tokenizer
from ditlab.errors import UserError
from ditlab.home import RunFolder
from ditlab.quality.classifier import _load
from ditlab.runs.description import describe_run
from ditlab.runs.launch import recorded_checkpoints
from ditlab.runs.listing import run_rows
from ditlab.runs.page_pictures import load_picture
from ditlab.spec import files
from ditlab.spec.files import load_experiment
from ditlab.sweeps.folder import read_takeovers
from ditlab.sweeps.prepare import PreparedSweep
from ditlab.sweeps.start import find_stored_sweep, read_past_trials
from ditlab.tracking.access import resolve_tracking_uri
from ditlab.tracking.journal import read_content, read_lines
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.mlflow_connection import database_damage
from ditlab.tracking.records import (
    find_run,
    find_unfinished,
    read_record,
    record_remarks,
    scan_runs,
)
from ditlab.tracking.upload import CursorFile, num_unsent
from ditlab_addons.compare.functions import summarise
from ditlab_addons.housekeeping.removal import check_unneeded
from ditlab_addons.housekeeping.sync import journal_fault
from support.damaged.home import FIELDS, OTHER, DamagedHome
from support.opened import open_training_run

Say = Callable[[str], None]
Reader = Callable[[DamagedHome, Say], Any]


@contextmanager
def spoken() -> Iterator[list[str]]:
    """Collect the warnings that are logged within the block, each as often as it is logged."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger, handler = logging.getLogger("ditlab"), Handler(logging.WARNING)
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    files._warn_once.cache_clear()
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def runs(one, say):
    """`ditlab runs`: the records, and the end of each journal. The other run is listed whatever
    happens.
    """
    found = scan_runs(one.home)
    for remark in record_remarks(found):
        say(remark)
    assert OTHER in {record.run_id for record in found.records}, "another run is lost"
    shown = run_rows(one.home, found.records)
    for note in shown.notes:
        say(note)
    for record in found.records:
        if content := content_of(one.home.run(record.run_id).journal):
            say(content)
    return list(zip(found.records, shown.rows, strict=True))


def content_of(journal: Path) -> str:
    """A sentence on damaged lines, which the list skips in silence and `show` counts; empty for
    none.
    """
    try:
        damaged = read_content(journal).num_damaged
    except OSError:
        return ""
    return f"{damaged} damaged lines" if damaged else ""


def content_of_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def show(one, say):
    """`ditlab runs show`."""
    described = describe_run(one.home, find_run(one.home, one.first.run_id))
    for note in described.notes:
        say(note)
    found = described.to_dict()
    return {key: found[key] for key in found.keys() - {"bytes", "notes"}}


def resume_auto(one, say):
    """`ditlab train --resume auto`: which run goes on."""
    found = find_unfinished(one.home, "other", read_record(one.other).spec_hash)
    assert found is not None, "another run is lost"
    return found


def resume(one, say):
    """`ditlab train --resume`: what the writers of both nodes' journals take from them."""
    scratch = one.home.root / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    found = []
    for node in (0, 1):
        journal = one.first.node_journal(node)
        if journal.is_file() and not journal.is_symlink() and journal.stat().st_size < 1 << 30:
            shutil.copyfile(journal, scratch / journal.name)
        elif os.path.lexists(journal) and not journal.is_dir():
            os.link(journal, scratch / journal.name, follow_symlinks=False)
        elif journal.is_dir():
            (scratch / journal.name).mkdir()
        # a journal that it cannot open is said
        writer = JournalWriter(RunFolder(scratch), node, budget=None)
        writer.close()
        found.append((writer.facts.params, writer._last_steps, writer._images))
    return found


def compare(one, say):
    """`ditlab compare`, without its samples and pictures."""
    return summarise(open_training_run(one.first.run_id, one.home, say))


def sync(one, say):
    """`ditlab runs sync`, up to the calls of MLflow."""
    if fault := journal_fault(one.first):  # which the command says of each run in turn
        say(fault)
        return None
    found: list[Any] = [
        cursor(one, say),
        num_unsent(one.first, resolve_tracking_uri(None, one.home), one.home),
    ]
    for node in (0, 1):
        journal = one.first.node_journal(node)
        lines = list(read_lines(journal, 0))
        if damaged := sum(line.record is None for line in lines):
            say(f"{damaged} damaged lines")
        found.append([line.record for line in lines])
    return found


def cursor(one, say):
    """The position up to which MLflow has the journals. From the beginning all is sent again, and
    nothing is lost.
    """
    address = resolve_tracking_uri(None, one.home)
    found = [CursorFile(one.first, address, node).load() for node in (0, 1)]
    if not found[0].offset:
        say("sent again from the beginning")
    return found


def sample(one, say):
    """`ditlab sample`, `evaluate`, `export`: the spec and the newest whole checkpoint."""
    saved = open_training_run(one.first.run_id, one.home, say).saved()
    return (
        saved.step,
        saved.experiment.to_dict(),
        content_of_tensors(saved.checkpoint.weights()),
    )


def averages(one, say):
    """`ditlab evaluate --ema`: the kept averages of the newest checkpoint and of the snapshots
    before it.
    """
    saved = open_training_run(one.first.run_id, one.home, say).saved()
    with open_averages(recorded_checkpoints(one.first), saved.checkpoint, say) as kept:
        return kept.num_snapshots, content_of_tensors(kept.rebuild(PowerProfile(0.2)).weights())


def spec(one, say):
    """A run's spec alone."""
    return open_training_run(one.first.run_id, one.home, say).experiment.to_dict()


def digits(one, say):
    """The store of the run's data, its shards hashed."""
    return _store(one.home.stores / "digits")


def named(one, say):
    """A store by its name."""
    return _store(store_folder("pets", one.home))


def buckets(one, say):
    """A store of images of several sizes."""
    return _store(one.bucketed)


def _store(path: Any) -> Any:
    store = open_store(path)
    return store.fingerprint, len(store), store.name


def tokenizer(one, say):
    """A tokeniser."""
    found = open_tokenizer(one.tokenizer)
    return type(found), found.content


def export(one, say):
    """`ditlab.load_export`."""
    found = open_export(one.export, torch.device("cpu"), say)
    return found.spec.to_dict(), found.step, content_of_tensors(found.network.state_dict())


def classifier(one, say):
    """The classifier of an evaluation; a damaged one is trained again, which is as good as saying
    so.
    """
    found = _load(one.classifier, FIELDS)
    if found is None:
        say("trained again")
        return None
    weights = content_of_tensors(found.network.state_dict())
    return found.accuracy, found.chance, found.samples, weights


def picture(one, say):
    """A picture on a run's page."""
    try:
        content, kind = load_picture(one.picture)
    except OSError as error:
        say(str(error))
        return None
    with Image.open(io.BytesIO(content)) as opened:
        return kind, opened.size, opened.convert("RGB").tobytes()


def best(one, say):
    """`ditlab train best.yaml`."""
    return load_experiment(one.best).to_dict()


def removal(one, say):
    """`ditlab runs rm`: a run that something needs stays, and one of which this cannot be known."""
    known, needed = scan_runs(one.home), []
    for run_id in (one.trial.run_id, OTHER):
        try:
            check_unneeded(one.home, known, [run_id])
        except UserError as error:
            needed.append(run_id)
            if run_id == OTHER:
                say(str(error))
    return one.trial.run_id in needed


def marker(one, say):
    """Ask whether the home is of this format and where it was made, as `train`, `tune`, `evaluate`
    and `ui` do.
    """
    one.home.check_format().check_place()


def database(one, say):
    """MLflow's database, before MLflow opens it: `runs sync`, `ui`."""
    if damage := database_damage(one.home.mlflow_database):
        say(damage)


def stored_sweep(one, say):
    """`ditlab tune --resume`: the sweep's spec."""
    return find_stored_sweep(one.home, one.sweep.sweep_id, None).sweep.to_dict()


def ledger(prepared: PreparedSweep) -> Reader:
    """`ditlab tune --resume`: its trials, whose checks were done before."""

    def read(one, say):
        past = read_past_trials(prepared, one.sweep)
        for note in one.sweep.damage(one.home):
            say(note)
        takeovers = [read_takeovers(one.home.run(trial.run_id)) for trial in past]
        return past, takeovers, one.sweep.load_elapsed()

    return read
