"""Asking a run of a cluster that ends before it answers."""

from functools import partial

from ditlab.cluster import asking
from ditlab.progress import ignore


class Store:
    """A cluster's key-value store from which the run's sign of life vanishes once somebody asks."""

    def __init__(self, held, name):
        self.held, self.name = held, name

    def topics(self):
        return [key.removeprefix(f"{self.name}/") for key in self.held]

    def get(self, topic):
        return self.held.get(f"{self.name}/{topic}")

    def put(self, topic, value):
        self.held.clear()
        self.held[f"{self.name}/{topic}"] = value

    def remove(self, topic):
        del self.held[f"{self.name}/{topic}"]


def test_a_run_that_has_ended_meanwhile_does_not_keep_who_asks(monkeypatch):
    held = {"ask/0a1b2c3d/sign": {"name": "digits", "count": 1}}
    monkeypatch.setattr(asking, "KeyValueChannel", partial(Store, held))
    monkeypatch.setattr(asking, "_SILENT", 0.3)
    run_id, answer = asking.ask_on_cluster("digits", "sample", None, ignore)
    assert run_id == "0a1b2c3d" and answer.status == "not done" and "has ended, or is without workers" in answer.message
    assert held == {}
