"""Comparison of an ejected file that was changed with the file as its spec gives it, step by step.

Both are trained in this process from the same seed. The first quantity that differs in its bits is
named, with the step and the modules or tensors that it differs in.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import RenderableType
from rich.table import Table
from torch import Tensor, nn

from ditlab.data.splits import open_data
from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.spec.experiment import Experiment
from ditlab.storage.plain_files import MIB, read_plain
from ditlab_addons.check.eject.ejecting import eject
from ditlab_addons.check.eject.rules import MOMENTS
from ditlab_addons.check.report import Report
from ditlab_addons.check.tensor_digest import tensor_digest

STEPS = 20
"""Steps that both are trained."""
RESUMED = 10
"""Step after which both are saved, and go on from the checkpoint."""
MOST_PLANNED = 10_000
"""Steps of the plan whose samples and learning rates are compared."""
LISTED = 3
"""Names that a sentence lists."""


@dataclass(frozen=True)
class Departure:
    """Quantity that differs."""

    step: int
    """From 1; 0 before training."""
    quantity: str
    where: tuple[str, ...]
    """Modules or tensors."""

    def __str__(self) -> str:
        names = ", ".join(self.where[:LISTED])
        if len(self.where) > LISTED:
            names += f" and {len(self.where) - LISTED} more"
        when = f"step {self.step}" if self.step else "before the first step"
        return f"{when}: {self.quantity}: {names}"


@dataclass(frozen=True)
class FileComparison(Report):
    """Findings about a file."""

    spec: str
    file: str
    steps: int
    changed: tuple[str, ...]
    """Definitions whose text differs from that of the spec."""
    departures: tuple[Departure, ...]
    """Quantities that differ, those of the first step that departs; () for the same bits."""

    @property
    def holds(self) -> bool:
        return not self.departures

    @property
    def verdict(self) -> str:
        """Sentence on what was found."""
        if self.holds:
            return f"{self.steps} steps of {self.file} have the bits of {self.spec}"
        return f"{self.file} departs from {self.spec} at {self.departures[0]}"

    def shown(self) -> Iterator[RenderableType]:
        if self.changed:
            yield f"changed definitions: {', '.join(self.changed)}"
        if self.departures:
            table = Table("step", "quantity", "where", box=None)
            for each in self.departures:
                table.add_row(str(each.step), each.quantity, ", ".join(each.where[:LISTED]))
            yield table
        yield self.verdict

    def to_dict(self) -> dict[str, Any]:
        return {
            "holds": self.holds,
            "verdict": self.verdict,
            "spec": self.spec,
            "file": self.file,
            "steps": self.steps,
            "changed": list(self.changed),
            "departures": [
                {"step": each.step, "quantity": each.quantity, "where": list(each.where)}
                for each in self.departures
            ],
        }


def compare_file(
    experiment: Experiment, home: Home, file: Path, progress: Progress = ignore_progress
) -> FileComparison:
    """Compare a file with what its spec gives. Raises UserError for a file that does not run."""
    try:
        text = read_plain(file, 16 * MIB, follow=True).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--against {file} cannot be read ({first_line(error)}); name a file that `ditlab "
            "eject` wrote."
        ) from None
    expected = eject(experiment, open_data(experiment.data, home, verify=False))
    return compare_texts(experiment.name, expected, text, file, progress)


def compare_texts(
    spec: str, expected: str, text: str, file: Path, progress: Progress = ignore_progress
) -> FileComparison:
    """Compare the text of a file with what the spec of a name gives. Raises UserError as
    `compare_file` does.
    """
    changed = changed_definitions(expected, text, file)
    with tempfile.TemporaryDirectory(prefix="ditlab-against-") as folder:
        one = Side.of("expected", expected, Path(folder), file)
        other = Side.of("changed", text, Path(folder), file)
        departures = [*_departures(one, other, progress)]
        steps = one.trainer.step
    return FileComparison(spec, str(file), steps, changed, tuple(departures))


def changed_definitions(expected: str, text: str, file: Path) -> tuple[str, ...]:
    """Return the functions, methods and constants whose code differs, new and missing ones among
    them.
    """
    try:
        own = _definitions(text)
    except SyntaxError as error:
        raise UserError(
            f"--against {file} is no Python (line {error.lineno}: {error.msg})."
        ) from None
    before = _definitions(expected)
    names = [*before, *(name for name in own if name not in before)]
    return tuple(name for name in names if before.get(name) != own.get(name))


def _definitions(text: str) -> dict[str, str]:
    """Return the code of each definition by name, without docstrings and comments."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                name = getattr(member, "name", "") or ast.unparse(getattr(member, "target", node))
                if not isinstance(member, ast.Expr):
                    found[f"{node.name}.{name}"] = ast.dump(_without_docstring(member))
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = ast.dump(_without_docstring(node))
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = ast.dump(node.value)
    return found


def _without_docstring(node: ast.stmt) -> ast.stmt:
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
        node.body = node.body[1:]
    return node


Facts = dict[str, dict[str, str]]
"""Digests by quantity and name, in the order in which a step makes them."""


@dataclass
class Side:
    """One of the two trainings."""

    name: str
    folder: Path
    file: Path
    """File that errors name."""
    facts: Facts = field(default_factory=dict)
    """Facts of the step that was done last."""

    @classmethod
    def of(cls, name: str, text: str, folder: Path, file: Path) -> Side:
        """Build the training of a text, in a folder of its own below one."""
        place = folder / name
        place.mkdir()
        (place / "train.py").write_text(text, encoding="utf-8")
        return cls(f"ditlab_ejected_{name}", place, file)

    def __post_init__(self) -> None:
        self.module = self._run("import", self._import)
        self.rebuild()

    def rebuild(self) -> None:
        """Build the training anew, and record what its steps do from then on."""
        folder = self.folder / "out"
        folder.mkdir(exist_ok=True)
        self.trainer: Any = self._run("build", lambda: self.module.build_trainer(folder))
        for path, module in self.trainer.module.named_modules():
            module.register_forward_hook(partial(self._record_output, path))
        update = self.trainer.update

        def recorded(norm: Tensor, lr: float) -> None:
            for group in self.trainer.groups:
                parts = group.gradient.split(group.sizes)
                for name, part in zip(group.names, parts, strict=False):
                    self._add("gradient", name, part)
            self._add("norm of the gradient", "the whole", norm)
            self._add("learning rate", "of the step", torch.tensor(lr, dtype=torch.float64))
            update(norm, lr)

        self.trainer.update = recorded
        loss = self.trainer.objective.loss

        def measured(network: nn.Module, batch: Mapping[str, Tensor], noise: Any) -> Any:
            for name, values in batch.items():
                self._add("samples", name, values)
            components = loss(network, batch, noise)
            for name, value in components.items():
                self._add("loss", name, value)
            return components

        self.trainer.objective.loss = measured

    def step(self) -> Facts:
        """Do a step and return its facts."""
        self.facts = {
            kind: {}
            for kind in (
                "samples",
                "output of a module",
                "loss",
                "gradient",
                "norm of the gradient",
                "learning rate",
            )
        }
        self._run("train", self.trainer.train_step)
        for name, values in sorted(self.trainer.tensors().items(), key=_by_cause):
            kind, _, parameter = name.partition("/")
            self._add(f"{kind} after the update", parameter, values)
        return self.facts

    def _add(self, kind: str, name: str, values: Tensor) -> None:
        own = self.facts.setdefault(kind, {})
        own[name] = own.get(name, "") + tensor_digest(values)

    def _record_output(self, path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        for each in output if isinstance(output, tuple) else (output,):
            if isinstance(each, Tensor) and self.facts:
                self._add("output of a module", path or "the whole", each)

    def _import(self) -> Any:
        spec = importlib.util.spec_from_file_location(self.name, self.folder / "train.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    def _run(self, what: str, function: Any) -> Any:
        """Do something of the file's. Raises UserError where it fails."""
        try:
            return function()
        except Exception as error:
            raise UserError(
                f"--against {self.file} does not {what} ({type(error).__name__}: "
                f"{first_line(error)}); run it by itself to see where."
            ) from error


def _by_cause(item: tuple[str, Tensor]) -> int:
    """Return the place of a tensor's kind in the order in which an update makes them."""
    kind = item[0].partition("/")[0]
    order = (*MOMENTS, "master")
    return order.index(kind) if kind in order else len(order)


def _departures(expected: Side, changed: Side, progress: Progress) -> Iterator[Departure]:
    """Yield the differences of what is planned, then those of the first step that departs."""
    yield from _planned(expected.trainer, changed.trainer)
    one = {name: tensor_digest(each) for name, each in expected.trainer.tensors().items()}
    other = {name: tensor_digest(each) for name, each in changed.trainer.tensors().items()}
    names = _differing(one, other)
    if names:
        yield Departure(0, "weights of the start", names)
        return
    steps = min(STEPS, expected.trainer.settings.steps)
    for step in range(1, steps + 1):
        progress("comparing steps", step, steps, "steps")
        facts = expected.step()
        others = changed.step()
        found = False
        for kind, digests in facts.items():
            names = _differing(digests, others.get(kind, {}))
            if names:
                found = True
                yield Departure(step, kind, names)
        if found:
            return
        if step == RESUMED:
            for side in (expected, changed):
                side.trainer.save()
                side.rebuild()
                side.trainer.resume()
    yield from _after(expected.trainer, changed.trainer, steps)


def _planned(expected: Any, changed: Any) -> Iterator[Departure]:
    """Yield differences of rows, order and learning rates over the whole plan."""
    for name in ("train_rows", "held_out_rows"):
        if not np.array_equal(getattr(expected, name), getattr(changed, name)):
            yield Departure(0, "rows of the data", (name,))
            return
    total = expected.settings.steps
    for step in np.linspace(0, total - 1, min(total, MOST_PLANNED)).astype(int).tolist():
        if expected.learning_rate(step) != changed.learning_rate(step):
            yield Departure(step + 1, "planned learning rate", ("learning_rate",))
            break
    for step in range(0, total, max(1, total // 100)):
        if not np.array_equal(expected.rows_of_step(step), changed.rows_of_step(step)):
            yield Departure(step + 1, "planned samples", ("rows_of_step",))
            break


def _after(expected: Any, changed: Any, step: int) -> Iterator[Departure]:
    """Yield differences of evaluation and samples after the last step."""
    measured = []
    drawn = []
    for trainer in (expected, changed):
        with trainer.averaged():
            if len(trainer.held_out_rows):
                values = trainer.evaluate()
                measured.append({name: repr(value) for name, value in values.items()})
            drawn.append({"samples": tensor_digest(trainer.draw_samples(2))})
    names = _differing(*measured) if measured else ()
    if names:
        yield Departure(step, "evaluation", names)
    if drawn[0] != drawn[1]:
        yield Departure(step, "samples drawn", ("draw_samples",))


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names whose digests differ, or that one side lacks, in the order of the first."""
    names = [*one, *(name for name in other if name not in one)]
    return tuple(name for name in names if one.get(name) != other.get(name))
