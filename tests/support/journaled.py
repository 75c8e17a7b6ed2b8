"""Runs made of records, without training: a spec, a journal, pictures and checkpoints, of any
family.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from ditlab.home import Home, RunFolder
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import encode_recorded, load_experiment
from ditlab.storage.files import add_checksum
from ditlab.tracking.names import flatten
from ditlab.tracking.records import create_run, update_record

CHECKOUT = Path(__file__).parents[2]
BEGIN = 1_795_326_554_000
"""Time of a run's start, milliseconds since 1970."""
STEP = 100
"""Milliseconds of a step."""


@cache
def family_spec(place: str) -> Experiment:
    """An experiment of the checkout, loaded once."""
    return load_experiment(CHECKOUT / "experiments" / place)


class JournaledRun:
    """A run of 40 steps whose records a test writes; `save` puts its journal on the disk."""

    def __init__(self, home: Path, place: str = "digits/dit.yaml", **facts: Any) -> None:
        self.spec = family_spec(place)
        self.home = Home(home)
        name, family = facts.pop("name", self.spec.name), self.spec.model.family
        self.folder: RunFolder = create_run(
            self.home, name, family=family, spec_hash="", total_steps=40, **facts
        )
        self.folder.spec.write_bytes(encode_recorded(self.spec.to_dict()))
        self.folder.media.mkdir()
        self.time, self.lines = BEGIN, list[bytes]()

    @property
    def components(self) -> list[str]:
        """The components of its loss."""
        return list(self.spec.objective.weights.model_dump())

    def add(self, kind: str, after: int = 0, **fields: Any) -> None:
        """Add a record `after` so many milliseconds."""
        self.time += after
        record = {"kind": kind, "time": self.time, **fields}
        self.lines.append(add_checksum(json.dumps(record, separators=(",", ":")).encode()) + b"\n")

    def start(self, **params: str) -> None:
        """Start or resume it; the first start logs parameters and data."""
        facts = {
            "run_id": self.folder.run_id,
            "name": self.spec.name,
            "experiment": "x",
            "family": "x",
        }
        is_first = not self.lines
        self.add("start", 3000, **facts)
        if is_first:
            counts = {
                "parameters.blocks": "900",
                "parameters.head": "100",
                "parameters.total": "1000",
            }
            self.add("params", values={**flatten(self.spec.to_dict()), **counts, **params})
            sizes = {"train": 1617, "held_out": 180}
            self.add(
                "dataset",
                name="digits",
                fingerprint="7f0a9e",
                source="digits",
                counts=sizes,
                context="training",
            )

    def train(self, steps: Sequence[int], bad: Sequence[int] = ()) -> None:
        """Log the metrics of steps; those in `bad` have a loss of NaN."""
        for step in steps:
            value: Any = 2 / math.sqrt(step)
            values = {f"train/{name}": value for name in self.components}
            values |= {
                "train/loss": "NaN" if step in bad else value,
                "train/grad_norm": 1.0,
                "train/lr": 1e-3,
            }
            self.add(
                "metrics", STEP, step=step, values={**values, "train/samples_per_second": 1280.0}
            )

    def evaluate(self, step: int, text: str = "", **metrics: float) -> None:
        """Log held-out metrics of a step, and samples: a small picture, and a text beside it for a
        language model.
        """
        picture = self.folder.media / f"samples-{step:08d}.png"
        Image.new("RGB", (24, 16), (step % 256, 90, 160)).save(picture)
        if text:
            picture.with_suffix(".txt").write_text(text)
        self.add("image", key="samples", step=step, path=f"media/{picture.name}")
        held_out = {f"eval/{name}": 2 / math.sqrt(step + 1) for name in self.components}
        self.add("metrics", step=step, values={**held_out, **metrics})

    def tags(self, values: Mapping[str, str], after: int = 0) -> None:
        """Log tags."""
        self.add("tags", after, values=dict(values))

    def end(self, status: str = "finished", step: int = 40) -> RunFolder:
        """Log its end, write the journal, and record the status."""
        self.add("end", 50, status=status)
        return self.save(status=status, step=step)

    def save(self, **changes: Any) -> RunFolder:
        """Write the journal, and fields of the run's record."""
        self.folder.journal.write_bytes(b"".join(self.lines))
        update_record(self.folder, **changes)
        return self.folder


def finished_run(
    home: Path, place: str = "digits/dit.yaml", text: str = "", **facts: Any
) -> RunFolder:
    """A run of 40 steps with three evaluations that has finished."""
    run = JournaledRun(home, place, **facts)
    run.start()
    run.evaluate(0, text)
    run.train(range(1, 21))
    run.evaluate(20, text)
    run.train(range(21, 41))
    run.evaluate(40, text)
    return run.end()
