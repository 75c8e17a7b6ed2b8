"""Files of a home with the readers of each, their damage from a seed, and the verdict on what the
readers did.
"""

import json
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import yaml

from ditlab.errors import RunFailed, UserError
from ditlab.storage.files import without_checksum
from support.damage import mutations
from support.damaged.home import DamagedHome
from support.damaged.readers import (
    Reader,
    averages,
    best,
    buckets,
    classifier,
    compare,
    cursor,
    database,
    digits,
    export,
    marker,
    named,
    picture,
    removal,
    resume,
    resume_auto,
    runs,
    sample,
    show,
    spec,
    spoken,
    stored_sweep,
    sync,
    tokenizer,
)
from support.special_files import remove
from support.watchdog import Hang, watchdog

LONGEST_SENTENCE = 2000

Form = Literal["lines", "json", "note", "yaml", "bytes"]
"""`note`: JSON without a checksum, of which a changed value may pass in silence."""


@dataclass(frozen=True)
class Case:
    """A file of a home, and what reads it."""

    name: str
    place: Callable[[DamagedHome], Path]
    readers: tuple[Reader, ...]
    form: Form
    weight: int
    """Share of the damage that it gets."""


def cases(ledger: Reader) -> tuple[Case, ...]:
    """Every kind of file. `ledger` reads the trials of a sweep (`readers.ledger`)."""
    journal = (runs, resume, compare, sync)
    return (
        Case("journal", lambda one: one.first.journal, journal, "lines", 20),
        Case(
            "journal of node 1",
            lambda one: one.first.node_journal(1),
            (resume, sync),
            "lines",
            8,
        ),
        Case(
            "run.json",
            lambda one: one.first.record,
            (runs, show, resume_auto),
            "note",
            15,
        ),
        Case("spec.yaml", lambda one: one.first.spec, (spec, compare), "yaml", 8),
        Case(
            "cursor",
            lambda one: one.first.journal.with_suffix(".cursor.json"),
            (cursor, sync),
            "note",
            5,
        ),
        Case(
            "checkpoint's manifest",
            lambda one: one.checkpoint / "manifest.json",
            (sample,),
            "json",
            5,
        ),
        Case(
            "checkpoint's shard",
            lambda one: next(one.checkpoint.glob("shard-*")),
            (sample,),
            "bytes",
            2,
        ),
        Case(
            "snapshot's manifest",
            lambda one: one.snapshot / "manifest.json",
            (averages,),
            "json",
            3,
        ),
        Case(
            "snapshot's shard",
            lambda one: next(one.snapshot.glob("shard-*")),
            (averages,),
            "bytes",
            2,
        ),
        Case(
            "store.json",
            lambda one: one.home.stores / "digits/store.json",
            (digits,),
            "json",
            5,
        ),
        Case(
            "store's rows",
            lambda one: next((one.home.stores / "digits").glob("*.arrow")),
            (digits,),
            "bytes",
            1,
        ),
        Case(
            "store's index",
            lambda one: next((one.home.stores / "digits").glob("blocks-*")),
            (digits,),
            "bytes",
            1,
        ),
        Case("name of a store", lambda one: one.home.stores / "pets", (named,), "json", 3),
        Case("buckets.json", lambda one: one.bucketed / "buckets.json", (buckets,), "json", 4),
        Case(
            "bucket's store.json",
            lambda one: next(one.bucketed.glob("*/store.json")),
            (buckets,),
            "json",
            3,
        ),
        Case(
            "export's weights",
            lambda one: one.export / "weights.safetensors",
            (export,),
            "bytes",
            3,
        ),
        Case("export's spec.yaml", lambda one: one.export / "spec.yaml", (export,), "yaml", 2),
        Case("tokenizer.json", lambda one: one.tokenizer, (tokenizer,), "json", 2),
        Case("classifier", lambda one: one.classifier, (classifier,), "bytes", 2),
        Case("trials.jsonl", lambda one: one.sweep.ledger, (ledger,), "lines", 6),
        Case(
            "exploits.jsonl", lambda one: one.trial.path / "exploits.jsonl", (ledger,), "lines", 3
        ),
        Case("elapsed.json", lambda one: one.sweep.clock, (ledger,), "json", 2),
        Case(
            "sweep.yaml",
            lambda one: one.sweep.spec,
            (stored_sweep, removal),
            "yaml",
            3,
        ),
        Case("best.yaml", lambda one: one.best, (best, removal), "yaml", 3),
        Case("home.json", lambda one: one.home.marker, (marker,), "json", 2),
        Case("mlflow.db", lambda one: one.home.mlflow_database, (database,), "bytes", 1),
        Case("picture", lambda one: one.picture, (picture,), "bytes", 1),
    )


@dataclass
class Verdicts:
    """Counts of what readers did with damaged files, and every fault."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of readings by file and outcome: `same`, `said`, `silent`, `crash`, `hang`."""
    faults: list[str] = field(default_factory=list)

    def add(self, case: str, outcome: str, fault: str = "") -> None:
        self.counts[case, outcome] += 1
        if fault:
            self.faults.append(fault)


def read(reader: Reader, one: DamagedHome) -> tuple[str, list[str]]:
    """(What a reader finds, as text; what it says): a UserError is a sentence and finds nothing."""
    said: list[str] = []
    with spoken() as logged, watchdog():
        try:
            found = repr(reader(one, said.append))
        except (UserError, RunFailed) as error:
            found = "nothing"
            said.append(str(error))
    return found, [*said, *logged]


class Judge:
    """Puts damage in the place of files of one home, and judges every reader by what it does
    without.
    """

    def __init__(self, one: DamagedHome, verdicts: Verdicts) -> None:
        self.one, self.verdicts = one, verdicts
        self._expected: dict[Reader, str] = {}

    def expected(self, reader: Reader) -> str:
        """Content that a reader finds in the undamaged home, in which it says nothing."""
        if reader not in self._expected:
            found, said = read(reader, self.one)
            assert not said, f"{reader.__name__} of the undamaged home: {said}"
            self._expected[reader] = found
        return self._expected[reader]

    def judge(
        self, case: Case, damage: Callable[[Path], object], label: str, may_be_silent: bool = False
    ) -> None:
        """Read the file of a case after `damage` of it, by all its readers; the file is put
        back.
        """
        place = case.place(self.one)
        for reader in case.readers:
            self.expected(reader)
        original = place.read_bytes()
        try:
            damage(place)
            for reader in case.readers:
                self._judge(
                    case, reader, f"{case.name}, {label}, read by {reader.__name__}", may_be_silent
                )
        finally:
            remove(place)
            place.write_bytes(original)

    def _judge(self, case: Case, reader: Reader, label: str, may_be_silent: bool) -> None:
        try:
            found, said = read(reader, self.one)
        except Hang as error:
            self.verdicts.add(case.name, "hang", f"{label}: {error}")
        except BaseException as error:
            text = "".join(traceback.format_exception(error)[-4:])
            self.verdicts.add(case.name, "crash", f"{label}: {type(error).__name__}\n{text}")
        else:
            outcome = "said" if said else "same"
            fault = ""
            if any(len(sentence) > LONGEST_SENTENCE or not sentence.strip() for sentence in said):
                outcome = "crash"
                fault = f"{label}: no sentence: {said[0][:300]!r}"
            elif not said and found != self.expected(reader):
                outcome = "silent"
                fault = "" if may_be_silent else f"{label}: another content in silence"
            self.verdicts.add(case.name, outcome, fault)


def flips(case: Case, content: bytes, num: int, seed: int) -> Iterator[tuple[str, bytes, bool]]:
    """(Label, content with one bit flipped, whether it may pass in silence).

    Of a journal, the last newline stays: a last line without one is a line that is being written.
    """
    draws = random.Random(f"{seed}/{case.name}")
    for _ in range(num):
        bit = draws.randrange(8 * (len(content) - (case.form == "lines")))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit % 8} of byte {bit // 8}", bytes(damaged), case.form == "note"


def typed(case: Case, content: bytes, num: int, seed: int) -> Iterator[tuple[str, bytes, bool]]:
    """(Label, content with a key or value of another name, type, size or number; whether it may
    pass in silence).

    Half of them keep the checksum, which is then wrong; half have none, as files of an earlier
    version.
    """
    for number in range(num):
        draw = random.Random(f"{seed}/{case.name}/{number}")
        keeps = draw.random() < 0.5
        yield (
            f"mutation {number} ({'with' if keeps else 'without'} checksum)",
            _mutated(case, content, draw, keeps),
            not keeps or case.form == "note",
        )


def _mutated(case: Case, content: bytes, draw: random.Random, keeps: bool) -> bytes:
    if case.form == "lines":
        lines = content.splitlines(keepends=True)
        place = draw.randrange(len(lines))
        lines[place] = _mutated_json(lines[place].rstrip(b"\n"), draw, keeps) + b"\n"
        return b"".join(lines)
    if case.form in ("json", "note"):
        text = content.rstrip(b"\n")
        return _mutated_json(text, draw, keeps) + content[len(text) :]
    if case.form == "yaml":
        text = json.dumps(yaml.safe_load(content)).encode()
        changed = next(mutations(text, 1, draw.randrange(1 << 30))) + b"\n"
        stamp = content.splitlines()[-1]
        if keeps and stamp.startswith(b"#"):
            changed += stamp + b"\n"
        return changed
    cut = draw.randrange(len(content))
    return draw.choice(
        (
            content[:cut],
            content[cut:],
            content + content[:9],
            b"",
            content[:cut] + b"\0" + content[cut:],
        )
    )


def _mutated_json(text: bytes, draw: random.Random, keeps: bool) -> bytes:
    checksum = text[-18:] if text[-18:].startswith(b',"crc":"') else b""
    body = without_checksum(text) if checksum else text
    changed = next(mutations(body, 1, draw.randrange(1 << 30)))
    return changed[:-1] + checksum if checksum and keeps else changed


def shares(every: Sequence[Case], num: int) -> Iterator[tuple[Case, int]]:
    """Share out a number of damages by the weight of each case, at least one each."""
    total = sum(case.weight for case in every)
    for case in every:
        yield case, max(1, round(num * case.weight / total))


def run_all(judge: Judge, every: Sequence[Case], num_flips: int, num_typed: int) -> None:
    """Judge every case with its share of flips and typed mutations."""
    for damage, total in ((flips, num_flips), (typed, num_typed)):
        for case, num in shares(every, total):
            content = case.place(judge.one).read_bytes()
            for label, damaged, may_be_silent in damage(case, content, num, seed=0):
                judge.judge(case, partial(Path.write_bytes, data=damaged), label, may_be_silent)
