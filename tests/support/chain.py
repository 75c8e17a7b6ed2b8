"""Text of a known Markov chain, and the experiment on it whose samples are measured."""

from typing import Any

from ditlab.spec.experiment import Experiment
from support.trainings.family_specs import smallest

CHAIN = {"kind": "markov_chain", "states": 8, "length": 32, "num": 600, "hold_out": 0.3}


def chain_experiment(**changes: Any) -> Experiment:
    """The smallest language model of sequences of the chain."""
    fixed = {
        "data": CHAIN,
        "model__vocabulary": 8,
        "model__length": 32,
        "sampling__steps": 16,
        "evaluation__quality": 100,
    }
    return smallest("dlm", **fixed | changes)
