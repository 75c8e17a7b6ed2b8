"""A run on text that is made of random words."""

import random
from pathlib import Path

import ditlab
from ditlab.data.importing import ImportRequest, run_import
from ditlab.home import Home
from ditlab.spec.importing import TextOptions
from support.trainings.family_specs import smallest

VOCABULARY = 300
"""Tokens of the BPE, of which each text has another one."""


def imported(name, seed=0, tokenizer="bpe", vocabulary=VOCABULARY):
    """A store of some 200 rows of 64 tokens of made-up words, in DITLAB_HOME."""
    draws, home = random.Random(seed), Home.from_environment()
    words = ["".join(draws.choices("aeiounrst", k=draws.randint(1, 7))) for _ in range(6000)]
    Path(f"{name}.txt").write_text(" ".join(words))
    options = TextOptions(
        source=f"{name}.txt",
        length=64,
        name=name,
        processes=1,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
    )
    home.ensure()
    run_import("text", ImportRequest(home.stores, home.caches, options))
    return {"kind": "arrow", "path": name, "hold_out": 0.2}


def train_on_text():
    """Train four steps, with quality at their end, in the working folder and DITLAB_HOME."""
    data = {"data": imported("own"), "model__length": 64, "model__vocabulary": VOCABULARY}
    spec = smallest("dlm", training__steps=4, evaluation__quality=100, evaluation__every=4, **data)
    return ditlab.train(spec, local=True).run
