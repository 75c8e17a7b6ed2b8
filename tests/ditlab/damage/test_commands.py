"""Whole commands on damaged homes: an exit code of the documents and a sentence, and no other run
is touched.
"""

import random

import pytest

from support.damaged import readers
from support.damaged.cases import cases, flips, shares, typed
from support.damaged.commands import commands_of, fault_of, kept, run_watched
from support.sweeps import prepared, sweep_of

NUM_FLIPS, NUM_TYPED, NUM_RESUMES = 100, 20, 20


def damages(one, seed):
    """(Case, label, content) of damaged files, by the weights of their kinds."""
    every = cases(readers.ledger(prepared(sweep_of())))
    for damage, total in ((flips, NUM_FLIPS), (typed, NUM_TYPED)):
        for case, num in shares(every, total):
            for label, damaged, *_ in damage(case, case.place(one).read_bytes(), num, seed):
                yield case, label, damaged


def files_of(folder):
    return {
        path: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_commands_on_damaged_homes(one, tmp_path):
    faults = []
    for number, (case, label, damaged) in enumerate(damages(one, seed=1)):
        choices = commands_of(case.name, one, tmp_path / "out")
        arguments = choices[number % len(choices)]
        with kept(one):
            case.place(one).write_bytes(damaged)
            said = run_watched(*arguments, one=one, cwd=tmp_path)
            if fault := fault_of(said):
                faults.append(f"{case.name}, {label}, {' '.join(map(str, arguments))}: {fault}")
    assert not faults, "\n\n".join(faults)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_resumes_on_damaged_homes(one, finished, tmp_path):
    """A run goes on to its end, or says why not; the other run's files keep every byte."""
    names = "journal|run.json|spec.yaml|cursor|store.json|checkpoint's manifest|checkpoint's shard"
    ledger = readers.ledger(prepared(sweep_of()))
    every = [case for case in cases(ledger) if case.name in names.split("|")]
    faults = []
    ended = []
    for number in range(NUM_RESUMES):
        case = random.Random(number).choices(every, [case.weight for case in every])[0]
        damage = typed if number % 2 else flips
        label, damaged, *_ = next(damage(case, case.place(one).read_bytes(), 1, seed=number))
        with kept(one):
            before = files_of(one.other.path)
            case.place(one).write_bytes(damaged)
            resume = ("--resume", one.first.run_id, "--set", "training.steps=6")
            said = run_watched("train", finished.spec, "--local", *resume, one=one, cwd=tmp_path)
            ended.append(said.code)
            found = [fault_of(said)]
            if case.name == "journal" and damage is flips and "damaged line" not in said.err:
                found.append(f"the resume says nothing of the damaged line: {said.err[-600:]}")
            if files_of(one.other.path) != before:
                found.append("another run was changed")
            faults += [f"{case.name}, {label}: {fault}" for fault in found if fault]
    assert not faults, "\n\n".join(faults)
    assert 0 in ended, "no damage was skipped"
