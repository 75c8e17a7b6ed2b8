"""What is known of each run that is compared, and what of it can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from denoisers.figures import Figure
from ditlab.reports.comparison.curves import AXES, EqualBudget, Track, equal_budget

HELD_OUT = "eval/"
TRAIN_LOSS = "train/loss"


@dataclass(frozen=True)
class Drawing:
    """Samples that were drawn from a run's weights."""

    step: int
    """Of the weights."""
    settings: str
    """How they were drawn: `solver=heun, steps=25`."""
    num: int
    seconds: float
    """A sample."""
    evaluations: float | None
    """Network evaluations a sample; None where the sampler calls only parts of the network."""
    grid: Figure | None
    """The first of them, as the family shows them."""
    quality: Mapping[str, float] = field(default_factory=dict)
    no_quality: str = ""
    """Why there are no quality metrics, where there are none."""


@dataclass(frozen=True)
class ComparedRun:
    """One run."""

    run_id: str
    name: str
    family: str
    status: str
    step: int
    """The last one that is known of."""
    batch_size: int
    spec: Mapping[str, str]
    """The resolved spec by dotted path."""
    weights: Sequence[str]
    """Components of the loss, the heaviest first."""
    data: str
    """Which samples trained and were held out: runs of one text can be compared in their held-out metrics."""
    components: Mapping[str, int]
    """Parameters by component of the network."""
    training_only: Mapping[str, int] = field(default_factory=dict)
    """Parameters that the objective owns."""
    tracks: Mapping[str, Track] = field(default_factory=dict)
    """`train/loss` and held-out metrics (`eval/...`) by name."""
    samples_per_second: float | None = None
    """Median."""
    drawing: Drawing | None = None
    no_drawing: str = ""
    """Why nothing was drawn, where nothing was."""

    @property
    def parameters(self) -> int:
        """Of the network."""
        return sum(self.components.values())

    @property
    def samples(self) -> int:
        """Seen in training."""
        return self.step * self.batch_size

    @property
    def seconds(self) -> float | None:
        """Of training, to the last training metric; None where the journal does not tell."""
        loss = self.tracks.get(TRAIN_LOSS)
        return None if loss is None or loss.seconds[-1] != loss.seconds[-1] else float(loss.seconds[-1])

    @property
    def held_out(self) -> dict[str, Track]:
        """By name without `eval/`."""
        return {name.removeprefix(HELD_OUT): one for name, one in self.tracks.items() if name.startswith(HELD_OUT)}

    def as_dict(self) -> dict[str, object]:
        """For `--json`; `metrics` are the last ones by their MLflow names, and the quality of the samples."""
        last = {name: float(one.values[-1]) for name, one in self.tracks.items()}
        return {
            "run_id": self.run_id,
            "name": self.name,
            "family": self.family,
            "status": self.status,
            "step": self.step,
            "samples": self.samples,
            "seconds": self.seconds,
            "samples_per_second": self.samples_per_second,
            "parameters": self.parameters,
            "metrics": last | dict(self.drawing.quality if self.drawing else {}),
        }


@dataclass(frozen=True)
class Comparison:
    """Runs side by side, in the order of their colours."""

    runs: Sequence[ComparedRun]
    seed: int
    """Of every run's samples."""
    batch: int
    """Samples drawn at once."""
    device: str
    quality_note: str = ""
    """What quality metrics are measured on."""

    @cached_property
    def labels(self) -> list[str]:
        """What each run is called: its name, with its id where two have one name."""
        names = [run.name for run in self.runs]
        return [run.name if names.count(run.name) == 1 else f"{run.name} ({run.run_id})" for run in self.runs]

    @cached_property
    def evaluated(self) -> list[ComparedRun]:
        """The runs that have held-out metrics."""
        return [run for run in self.runs if run.held_out]

    @cached_property
    def common(self) -> list[str]:
        """Held-out metrics that all evaluated runs have, the main one first."""
        if len(self.evaluated) < 2:
            return []
        shared = [name for name in self.evaluated[0].held_out if all(name in run.held_out for run in self.evaluated)]
        return sorted(shared, key=lambda name: name != self.main)

    @cached_property
    def main(self) -> str | None:
        """The held-out metric that ranks: the heaviest loss component that all evaluated runs have; lower is better."""
        if len(self.evaluated) < 2:
            return None
        for name in self.evaluated[0].weights:
            if all(name in run.weights and name in run.held_out for run in self.evaluated):
                return name
        return None

    @cached_property
    def obstacle(self) -> str:
        """Why held-out metrics cannot be compared; empty where they can."""
        if len(self.evaluated) < 2:
            return "fewer than two of the runs have held-out metrics"
        if len({run.data for run in self.evaluated}) > 1:
            return "the runs differ in their data (other training or held-out samples)"
        if not self.common:
            return "the runs' families have no held-out metric in common"
        if self.main is None:
            return "the runs' families have no loss component in common, so no held-out metric says which is better"
        return ""

    @cached_property
    def has_one_objective(self) -> bool:
        """Whether training losses of all runs mean the same."""
        objectives = [
            {path: value for path, value in run.spec.items() if path.startswith("objective.")} for run in self.runs
        ]
        return all(objective == objectives[0] for objective in objectives)

    @cached_property
    def budgets(self) -> list[EqualBudget]:
        """The main metric at equal steps, samples and time, as far as these are known; values in `evaluated`'s order.

        Empty where held-out metrics cannot be compared.
        """
        if self.obstacle or self.main is None:
            return []
        tracks = [run.held_out[self.main] for run in self.evaluated]
        return [found for axis in AXES if (found := equal_budget(tracks, axis))]

    def label(self, run: ComparedRun) -> str:
        return self.labels[[one.run_id for one in self.runs].index(run.run_id)]
