"""Adoption: a training of an ejected file as a run of this home."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ditlab.api.training import TrainingResult, train_launch
from ditlab.data.splits import open_data
from ditlab.engine.distributed import Rank
from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.progress import ignore
from ditlab.runs.local import train_in_process
from ditlab.runs.prepare import begin_launch, check_launch
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import build_experiment
from ditlab.spec.yaml_text import parse_yaml
from ditlab.storage.plain_files import MIB, read_plain
from ditlab.training.hooks import StepHook
from ditlab.training.plan import TrainingRun
from ditlab.training.reporting import Reporter, RunOutcome
from ditlab.training.trainer import Trainer
from ditlab_addons.check.eject.against import changed_definitions
from ditlab_addons.check.eject.ejecting import SPEC_FOLLOWS, eject

FILE = "train.py"
"""Copy of the file that its folder holds."""
LOG = "log.jsonl"
TAG = "ditlab.adopted"
"""Tag of an adopted run: `as ejected`, or the definitions that were changed."""


@dataclass(frozen=True)
class EjectedCheckpoint:
    """Checkpoint of an ejected file, as a training state reads it."""

    path: Path

    @cached_property
    def _file(self) -> safe_open:
        try:
            return safe_open(self.path, "pt")
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"{self.path} is no whole checkpoint ({first_line(error)}); remove it, and adopt "
                "the ones before."
            ) from None

    @cached_property
    def shapes(self) -> dict[str, list[int]]:
        """Shape of each tensor by field and name: `master/network.head.weight`."""
        return {name: self._file.get_slice(name).get_shape() for name in [*self._file.keys()]}

    @property
    def step(self) -> int:
        """Optimiser steps done."""
        return int(self._file.metadata()["step"])

    @property
    def scalars(self) -> dict[str, float]:
        """Numbers of the state beside its tensors."""
        found: dict[str, float] = json.loads(self._file.metadata()["scalars"])
        return found

    def has(self, kind: str) -> bool:
        """Return True if any tensor of a field is there."""
        return any(name.startswith(f"{kind}/") for name in self.shapes)

    def read(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        """Return values `start` to `stop` of a flattened tensor, float32."""
        found: Tensor = self._file.get_tensor(f"{kind}/{name}")
        return found.reshape(-1)[start:stop]


@dataclass(frozen=True)
class EjectedTraining:
    """Folder that an ejected file trained into."""

    folder: Path

    @cached_property
    def text(self) -> str:
        """Text of the file."""
        path = self.folder / FILE
        try:
            return read_plain(path, 16 * MIB, follow=True).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} cannot be read ({first_line(error)}); name the folder that a file of "
                "`ditlab eject` trained into."
            ) from None

    @cached_property
    def experiment(self) -> Experiment:
        """Experiment that the file was ejected from, for one worker. Raises UserError where the
        file does not name it.
        """
        try:
            docstring = ast.get_docstring(ast.parse(self.text)) or ""
        except SyntaxError:
            docstring = ""
        _, _, spec = docstring.partition(SPEC_FOLLOWS)
        if not spec.strip():
            raise UserError(
                f"{self.folder / FILE} does not end its docstring with the spec, as `ditlab eject` "
                "writes it; put it back."
            )
        experiment = build_experiment(parse_yaml(spec, FILE), f"{self.folder / FILE}")
        return experiment.replace("resources.workers", 1)

    @cached_property
    def checkpoints(self) -> list[EjectedCheckpoint]:
        """Checkpoints, oldest first. Raises UserError where there is none."""
        found = sorted(self.folder.glob("step-*.safetensors"))
        if not found:
            raise UserError(
                f"{self.folder} holds no checkpoint; train the file up to its first one."
            )
        return [EjectedCheckpoint(path) for path in found]

    def log(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield steps and their numbers; of a step that was logged twice, as a resume does, the
        last.
        """
        lines: dict[tuple[int, tuple[str, ...]], dict[str, float]] = {}
        for line in (self.folder / LOG).read_text(encoding="utf-8").splitlines():
            try:
                values = json.loads(line)
            except ValueError:
                continue  # torn by a kill
            step = int(values.pop("step"))
            lines[step, tuple(values)] = values
        for (step, _), values in sorted(lines.items()):
            yield step, values

    def changes(self, home: Home) -> tuple[str, ...]:
        """Return the definitions in which the file differs from what its spec gives."""
        data = open_data(self.experiment.data, home, verify=False)
        expected = eject(self.experiment, data)
        return changed_definitions(expected, self.text, self.folder / FILE)


def adopt(
    folder: Path,
    say: Callable[[str], None] = ignore,
    warn: Callable[[str], None] = ignore,
) -> TrainingResult:
    """Make a run of what an ejected file has trained: its log, its checkpoints, an evaluation of
    the last one.

    Raises UserError for a folder of something else, and for weights that do not fit the spec's
    network.
    """
    training = EjectedTraining(folder)
    experiment = training.experiment
    changed = training.changes(Home.from_environment())
    if changed:
        say(f"changed since it was ejected: {', '.join(changed)}")
    step = training.checkpoints[-1].step
    behind = sum(number > step for number, _ in training.log())
    if behind:
        say(
            f"{behind:,} lines of the log lie behind the last checkpoint, of step {step:,}, and "
            "are dropped."
        )
    launch = check_launch(experiment, None, local=True, remote=False)
    last = training.checkpoints[-1]
    _check_fits(launch.model, last)
    launch = begin_launch(
        launch.changed(tags={**launch.tags, TAG: ", ".join(changed) or "as ejected"})
    )
    (launch.folder.path / FILE).write_text(training.text, encoding="utf-8")
    body = partial(record_training, training)
    return train_launch(
        launch, (), True, partial(train_in_process, body=body), ignore, ignore, warn
    )


def _check_fits(model: object, last: EjectedCheckpoint) -> None:
    """Raise UserError for weights of another network than the spec's."""
    expected: dict[str, list[int]] = {}
    for prefix in ("network", "objective"):
        owner = getattr(model, prefix)
        module = owner if prefix == "network" else owner.modules
        if module is not None:
            expected |= {
                f"{prefix}.{name}": list(each.shape) for name, each in module.named_parameters()
            }
    own = {
        name.removeprefix("master/"): shape
        for name, shape in last.shapes.items()
        if name.startswith("master/")
    }
    names = [*expected, *(name for name in own if name not in expected)]
    wrong = [name for name in names if expected.get(name) != own.get(name)]
    if wrong:
        first = wrong[0]
        raise UserError(
            f"{last.path} holds {first} as {own.get(first, 'nothing')}, and the network of the "
            f"spec has {expected.get(first, 'no such tensor')} ({len(wrong)} tensors differ); a "
            "changed network comes back as a family of its own (docs/own_family.md)."
        )


def record_training(
    training: EjectedTraining,
    run: TrainingRun,
    rank: Rank,
    reporter: Reporter,
    hooks: Sequence[StepHook],
) -> RunOutcome:
    """Log and save what was trained, in place of training it: the body of a worker."""
    with Trainer(run, rank, reporter, hooks) as trainer:
        state = trainer.state
        last = training.checkpoints[-1].step
        latest: dict[str, float] = {}
        by_step: dict[int, dict[str, float]] = {}
        for step, values in training.log():
            if step <= last:
                by_step.setdefault(step, {}).update(values)
        for step, values in by_step.items():
            if step == last:
                values = without_evaluation(values)
            reporter.metrics(step, values)
            latest |= values
        trainer.checkpoints.begin(state)
        for checkpoint in training.checkpoints:
            step = checkpoint.step
            position = step * run.experiment.batch.size
            with torch.no_grad():
                state.load(checkpoint, checkpoint.scalars, step, position)
            trainer.checkpoints.save(state, latest, {})
            trainer.checkpoints.finish()
        values = trainer.evaluation.evaluate(state, trainer.stepper.share.pass_size)
        reporter.metrics(last, values)
        is_whole = last == run.plan.total_steps
        return RunOutcome(
            "finished" if is_whole else "interrupted",
            last,
            latest | values,
            trainer.checkpoints.last,
        )


def without_evaluation(values: Mapping[str, float]) -> dict[str, float]:
    """Return a step's values without those that its evaluation here gives again."""
    return {name: value for name, value in values.items() if not name.startswith("eval/")}
