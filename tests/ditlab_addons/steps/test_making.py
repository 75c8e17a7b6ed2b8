"""Each step is made once, after those that it needs; a change makes its descendants alone again."""

import random
import shutil
import threading
from itertools import cycle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab_addons.steps.ledger import Ledger, Made, identity_of


def random_steps(draw: random.Random, num: int) -> dict:
    """Steps that need random earlier ones."""
    steps: dict[str, dict] = {}
    of_kind: dict[str, list[str]] = {"import": [], "tune": [], "train": []}
    for number in range(num):
        name = f"s{number}"
        kind = draw.choice(["import", "tune", "train", "train", "train", "evaluate"])
        step = {"set": {"value": number}}
        if kind == "import":
            step["import"] = "digits"
        elif kind == "evaluate":
            if not of_kind["train"]:
                continue
            size = min(3, len(of_kind["train"]))
            step["evaluate"] = draw.sample(of_kind["train"], size)
        else:
            step[kind] = "spec.yaml"
            needs = {"data": "import"}
            if kind == "train":
                needs |= {"weights-of": "train", "settings-of": "tune"}
            for field, needed in needs.items():
                if of_kind[needed] and draw.random() < 0.6:
                    step[field] = draw.choice(of_kind[needed])
        steps[name] = step
        if kind in of_kind:
            of_kind[kind].append(name)
    return steps or {"s": {"import": "digits"}}


def descendants(graph, name: str) -> set[str]:
    found = {name}
    for step in graph.steps.values():
        if found & set(step.needed):
            found.add(step.name)
    return found


@given(st.integers(0, 10**9), st.integers(1, 40), st.integers(1, 4))
@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
def test_a_change_makes_exactly_the_descendants_again(make, tmp_path, seed, num, at_once):
    draw = random.Random(seed)
    steps = random_steps(draw, num)
    shutil.rmtree(tmp_path / "home", ignore_errors=True)
    first = make(dump_yaml({"name": "g", "steps": steps}), at_once)
    assert (first.code, first.started) == (0, dict.fromkeys(steps, 1))
    assert first.most_alive <= at_once
    shuffled = draw.sample(list(steps), len(steps))
    again = make(
        "# a comment\n"
        + dump_yaml({"name": "g", "steps": {name: steps[name] for name in shuffled}})
    )
    assert (again.code, again.started) == (0, {})
    changed = draw.choice(list(steps))
    steps[changed]["set"] = {"value": -1}
    second = make(dump_yaml({"name": "g", "steps": steps}), at_once)
    assert second.started == dict.fromkeys(descendants(second.graph, changed), 1)


CHAIN = """
name: chain
steps:
  a: {train: x.yaml}
  b: {train: x.yaml, weights-of: a}
  c: {train: x.yaml, weights-of: b}
  d: {train: x.yaml, set: {value: 1}}
"""


def test_a_failed_step_ends_its_descendants_alone(make):
    made = make(CHAIN, broken=["b"])
    assert made.code == 1
    assert made.states == {"a": "done", "b": "failed", "c": "skipped", "d": "done"}
    assert made.reasons["c"] == "b is not done"
    assert make(CHAIN).started == {"b": 1, "c": 1}


@pytest.mark.parametrize(
    ("cores", "most"), [([1], 4), ([2], 2), ([3], 1), ([None], 1), ([0], 8), ([0, None], 7)]
)
def test_steps_run_at_once_as_far_as_cores_go(make, monkeypatch, cores, most):
    """None: all cores of this machine; 0: those of a cluster."""
    monkeypatch.setattr("ditlab_addons.steps.making.allowed_cores", lambda: (4, ""))
    steps = {}
    for seed, wanted in zip(range(12), cycle(cores), strict=False):
        own = {} if wanted is None else {"cores": wanted}
        steps[f"s{seed}"] = {"train": "x", "set": {"seed": seed, **own}}
    made = make(dump_yaml({"name": "g", "steps": steps}), at_once=None)
    assert (made.code, made.most_alive) == (0, most)


def test_equal_steps_are_made_once(make):
    made = make(CHAIN.replace(", set: {value: 1}", ""))
    assert made.code == 0
    assert made.started == {"a": 1, "b": 1, "c": 1}


def test_a_step_that_another_process_makes_is_waited_for(make, tmp_path):
    identity = identity_of({"kind": "train", "set": {"value": 1}})
    ledger = Ledger(Home(tmp_path / "home"))
    with ledger.locked(identity) as lock:

        def end() -> None:
            ledger.add(identity, Made(digest="made elsewhere"))
            lock.close()

        threading.Timer(0.2, end).start()
        made = make(CHAIN)
    assert made.code == 0
    assert made.started == {"a": 1, "b": 1, "c": 1}


def test_a_file_that_is_edited_while_others_run_counts_as_it_is_then(make, tmp_path):
    spec = tmp_path / "spec.yaml"

    def edit(name):
        if name == "a":
            spec.write_text("edited")

    spec.write_text("before")
    assert make(CHAIN, starting=edit).started == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert make(CHAIN).started == {"a": 1, "b": 1, "c": 1}
    spec.write_text("before")
    assert make(CHAIN).started == {"b": 1, "c": 1, "d": 1}


@pytest.mark.parametrize("field", ["name: chain", "  d: {train: x.yaml, set: {value: 1}}"])
def test_names_decide_nothing(make, field):
    make(CHAIN)
    assert (
        make(CHAIN.replace(field, field.replace("chain", "other").replace("d:", "e:"))).started
        == {}
    )
