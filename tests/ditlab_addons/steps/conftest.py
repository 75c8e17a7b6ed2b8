"""Graphs whose commands are counted and compute nothing."""

import io
import json
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from ditlab.home import Home
from ditlab_addons.steps.graph import load_graph
from ditlab_addons.steps.ledger import Ledger, Made, identity_of
from ditlab_addons.steps.making import Making
from ditlab_addons.steps.tasks import ALL_CORES, Task


class CountingMaker:
    """Tasks whose result is a hash of a step's settings and inputs, on `set.cores` cores."""

    def __init__(self, graph, home) -> None:
        self.graph = graph
        self.home = home
        self.ledger = Ledger(home)
        self.runs = SimpleNamespace(refresh=lambda: None)

    def tasks(self, each, inputs) -> list[Task]:
        digests = {field: [made.digest for made in inputs[field]] for field in inputs}
        content = {"kind": each.kind, "set": dict(each.step.value("set")), **digests}
        file = self.graph.folder / "spec.yaml"
        if file.exists():
            content["file"] = file.read_text()

        def read(printed) -> Made:
            return Made(digest=printed["digest"])

        cores = each.step.value("set").get("cores", ALL_CORES)
        return [Task((each.name, identity_of(content)), content, read, cores=cores)]


class Commands:
    """Stand-in for processes; each ends after some looks."""

    def __init__(self, broken, starting) -> None:
        self.started = Counter()
        self.broken = broken
        self.starting = starting
        self.alive = 0
        self.most_alive = 0

    def __call__(self, arguments, lock, step):
        name, identity = arguments
        self.starting(name)
        self.started[name] += 1
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        left = random.Random(name).randint(0, 2)
        process = SimpleNamespace(returncode=int(name in self.broken), left=left)
        process.stdout = io.StringIO(json.dumps({"digest": identity}) + "\n")

        def poll():
            process.left -= 1
            if process.left >= 0:
                return None
            self.alive -= 1
            return process.returncode

        process.poll = poll
        return process


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Function that makes a graph of some text with counted commands; returns the code, the number
    of starts by step, and the states.
    """
    monkeypatch.setattr("ditlab_addons.steps.making.POLL", 0)

    def made(text: str, at_once=1, broken=(), starting=lambda name: None):
        path = tmp_path / "graph.yaml"
        path.write_text(text)
        graph = load_graph(path)
        commands = Commands(broken, starting)
        steps = list(graph.steps.values())
        maker = CountingMaker(graph, Home(tmp_path / "home"))
        making = Making(steps, maker, at_once, lambda line: None, commands)
        code = making.make()
        return SimpleNamespace(
            code=code,
            started=dict(commands.started),
            states={name: str(state.status) for name, state in making.states.items()},
            reasons={name: state.reason for name, state in making.states.items()},
            most_alive=commands.most_alive,
            graph=graph,
        )

    return made
