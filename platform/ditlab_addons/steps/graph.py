"""A graph of steps as a file describes it: kinds of steps, references between them, their order. No
torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from ditlab.errors import UserError, nearest
from ditlab.spec.experiment import NamedSpec
from ditlab.spec.files import read_with_parents, spec_name
from ditlab.spec.overrides import assign, parse_overrides, validate
from ditlab.spec.values import format_value
from ditlab_models.contract import Spec

Result = Literal["store", "run", "sweep", "files"]
"""Kind of result of a step, for those that need it."""
StepName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}$")]
SpecFile = Annotated[
    str, Field(min_length=1, description="YAML of the spec, from the folder of this file on.")
]
Changes = Annotated[
    dict[str, Any],
    Field(
        default_factory=dict,
        description="Settings that differ, by dotted path, as `--set` takes them.",
    ),
]
Several = Annotated[tuple[StepName, ...], Field(min_length=1, strict=False)]
Axes = Annotated[
    dict[str, Annotated[tuple[Any, ...], Field(min_length=1, strict=False)]],
    Field(
        default_factory=dict,
        description="Values by path; a step is made of each combination, `NAME-1`, `NAME-2`, ...",
    ),
]


class Step(Spec):
    """Base of all kinds of steps, whose first field is the kind's name."""

    def value(self, field: str) -> Any:
        """Return the value of a field, some of which have names that Python cannot write."""
        return getattr(self, field)


class ImportStep(Step):
    """Data of a kind, imported as a store."""

    __annotations__ = {
        "import": Annotated[
            str, Field(min_length=1, description="Kind of data, as `ditlab data import` has them.")
        ],
        "set": Changes,
    }


class EncodeStep(Step):
    """A store with the features of frozen encoders beside its columns."""

    __annotations__ = {
        "encode": Annotated[StepName, Field(description="Step whose store is encoded.")],
        "set": Changes,
    }


class TrainStep(Step):
    """A training run."""

    __annotations__ = {
        "train": SpecFile,
        "data": Annotated[
            StepName | None,
            Field(default=None, description="Step whose store is trained on."),
        ],
        "settings-of": Annotated[
            StepName | None,
            Field(default=None, description="Sweep whose best values are set."),
        ],
        "weights-of": Annotated[
            StepName | None,
            Field(
                default=None,
                description="Step whose last weights, or those of its best trial, it begins from.",
            ),
        ],
        "set": Changes,
        "for": Axes,
        "seeds": Annotated[
            int, Field(default=1, ge=1, description="Seeds, each a run; several are a group.")
        ],
    }


class TuneStep(Step):
    """A sweep."""

    __annotations__ = {
        "tune": SpecFile,
        "data": Annotated[
            StepName | None,
            Field(default=None, description="Step whose store all trials are trained on."),
        ],
        "set": Changes,
    }


class EvaluateStep(Step):
    """Held-out metrics of runs, and the quality of their samples."""

    __annotations__ = {
        "evaluate": Annotated[Several, Field(description="Steps whose runs are evaluated.")],
        "quality": Annotated[
            int | None,
            Field(default=None, ge=0, description="Samples whose quality is measured; 0: none."),
        ],
        "set": Changes,
    }


class SampleStep(Step):
    """Samples of a run."""

    __annotations__ = {
        "sample": Annotated[StepName, Field(description="Step whose run is sampled.")],
        "num": Annotated[int | None, Field(default=None, ge=1, description="Number of samples.")],
        "set": Changes,
    }


class CompareStep(Step):
    """A page of runs side by side."""

    __annotations__ = {
        "compare": Annotated[
            Annotated[tuple[StepName, ...], Field(min_length=2, strict=False)],
            Field(description="Steps whose runs are compared."),
        ]
    }


class ExportStep(Step):
    """Weights of a run for other programs."""

    __annotations__ = {
        "export": Annotated[StepName, Field(description="Step whose weights are exported.")],
        "format": Annotated[
            str, Field(default="ditlab", description="Form, as `ditlab export --format` has them.")
        ],
    }


class Kind(NamedTuple):
    """A kind of steps."""

    spec: type[Step]
    makes: Result
    needs: Mapping[str, tuple[Result, ...]]
    """Results that a field may name, by the field."""

    def needs_one(self, field: str) -> bool:
        """Return True for a field that needs the weights of one run."""
        return field in ("weights-of", "sample", "export")


RUNS: tuple[Result, ...] = ("run", "sweep")
"""Results with weights; those of a sweep are its best trial's."""
KINDS: Mapping[str, Kind] = {
    "import": Kind(ImportStep, "store", {}),
    "encode": Kind(EncodeStep, "store", {"encode": ("store",)}),
    "train": Kind(
        TrainStep, "run", {"data": ("store",), "settings-of": ("sweep",), "weights-of": RUNS}
    ),
    "tune": Kind(TuneStep, "sweep", {"data": ("store",)}),
    "evaluate": Kind(EvaluateStep, "files", {"evaluate": RUNS}),
    "sample": Kind(SampleStep, "files", {"sample": RUNS}),
    "compare": Kind(CompareStep, "files", {"compare": RUNS}),
    "export": Kind(ExportStep, "files", {"export": RUNS}),
}
AnyStep = (
    ImportStep
    | EncodeStep
    | TrainStep
    | TuneStep
    | EvaluateStep
    | SampleStep
    | CompareStep
    | ExportStep
)
NOUNS: Mapping[Result, str] = {
    "store": "data",
    "run": "a training",
    "sweep": "a sweep",
    "files": "files",
}


class StepsFile(NamedSpec):
    """Experiments that build on each other: steps by name."""

    name: str
    """Name of the graph, for people: letters, digits, `-`, `_`, `.`."""
    steps: Annotated[dict[StepName, dict[str, Any]], Field(min_length=1)]
    """Steps by name, each of the kind that one of its fields names: import, encode, train, tune,
    evaluate, sample, compare or export."""


@dataclass(frozen=True)
class GraphStep:
    """A step with the names of those that it needs."""

    name: str
    kind: str
    step: Step
    values: Mapping[str, Any]
    """Its values of `for`, by path."""
    inputs: Mapping[str, tuple[str, ...]]
    """Names of steps by field."""

    @property
    def has_seeds(self) -> bool:
        """True for a training of several seeds."""
        return self.kind == "train" and self.step.value("seeds") > 1

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of all steps that it needs."""
        return tuple(name for names in self.inputs.values() for name in names)

    def changes(self) -> dict[str, Any]:
        """Return the settings that it changes, by path."""
        return {**self.step.value("set"), **self.values}


@dataclass(frozen=True)
class Graph:
    """Steps, each after those that it needs."""

    name: str
    folder: Path
    """Folder of its file, from which paths are taken."""
    steps: Mapping[str, GraphStep]
    file: StepsFile

    def to_dict(self) -> dict[str, Any]:
        """The file's fields."""
        return self.file.to_dict()

    def describe(self) -> str:
        """Phrase on its size: `8 steps`."""
        return f"{len(self.steps):,} step{'' if len(self.steps) == 1 else 's'}"

    def with_needed(self, names: Sequence[str]) -> list[GraphStep]:
        """Return the named steps and all that they need, in order; without names all steps.

        Raises UserError for a step that is not there.
        """
        for name in names:
            if name not in self.steps:
                raise UserError(
                    f"STEP={name} is no step of {self.name}; {nearest(name, list(self.steps))}"
                )
        wanted = set(names or self.steps)
        for step in reversed([*self.steps.values()]):
            if step.name in wanted:
                wanted.update(step.needed)
        return [step for step in self.steps.values() if step.name in wanted]


def load_graph(path: Path, overrides: Sequence[str] = ()) -> Graph:
    """Load a graph from a YAML file and its parents, with `--set` overrides on top. Raises
    UserError, naming file and field, for anything wrong in it.
    """
    source = spec_name(path)
    mapping = read_with_parents(path)
    _override(mapping, overrides)
    file = validate(StepsFile, mapping, f"{source}: ")
    steps: dict[str, GraphStep] = {}
    families: dict[str, tuple[str, ...]] = {}
    """Names of the steps that each step of the file becomes."""
    for name, fields in file.steps.items():
        made = [*_expanded(name, *_validated(name, fields, source))]
        families[name] = tuple(each.name for each in made)
        steps |= {each.name: each for each in made}
    connected = {
        name: _connected(each, steps, families, f"{source}: steps.{name}")
        for name, each in steps.items()
    }
    return Graph(file.name, path.parent, _ordered(connected, source), file)


def _override(mapping: dict[str, Any], overrides: Sequence[str]) -> None:
    """Apply `--set` to a file's mapping: `steps.NAME.FIELD=VALUE`, and `steps.NAME.set.PATH=VALUE`.

    Raises UserError for a step that is not there.
    """
    for each in parse_overrides(overrides):
        first, *keys = each.path.split(".", 3)
        steps = mapping.get("steps")
        if first != "steps" or len(keys) < 2 or not isinstance(steps, dict):
            mapping.update(assign(mapping, [each], lambda _: StepsFile))
            continue
        if keys[0] not in steps:
            raise UserError(
                f"{each.source}: steps.{keys[0]} is no step; {nearest(keys[0], list(steps))}"
            )
        target = steps[keys[0]]
        if keys[1] in ("set", "for") and len(keys) == 3:
            target = target.setdefault(keys[1], {})
            keys = keys[1:]
        target[".".join(keys[1:])] = each.value


def _validated(name: str, fields: Mapping[str, Any], source: str) -> tuple[str, Step]:
    """Return a step with its kind. Raises UserError for none, several or wrong fields."""
    found = [kind for kind in KINDS if kind in fields]
    if len(found) != 1:
        given = " and ".join(found) or "none"
        raise UserError(
            f"{source}: steps.{name} must have one of the fields {', '.join(KINDS)}, which is its "
            f"kind; it has {given}."
        )
    return found[0], validate(KINDS[found[0]].spec, fields, f"{source}: steps.{name}.")


def _expanded(name: str, kind: str, step: Step) -> Iterator[GraphStep]:
    """Yield a step for each combination of its values of `for`; the step itself without them."""
    axes: Mapping[str, Sequence[Any]] = step.value("for") if isinstance(step, TrainStep) else {}
    if not axes:
        yield GraphStep(name, kind, step, {}, {})
        return
    for number, values in enumerate(product(*axes.values()), start=1):
        chosen = dict(zip(axes, values, strict=True))
        yield GraphStep(f"{name}-{number}", kind, step, chosen, {})


def _connected(
    each: GraphStep,
    steps: Mapping[str, GraphStep],
    families: Mapping[str, tuple[str, ...]],
    place: str,
) -> GraphStep:
    """Return a step with the names of the steps that it needs. Raises UserError for a name that is
    no step's, and for a step of another kind.
    """
    inputs: dict[str, tuple[str, ...]] = {}
    for field, wanted in KINDS[each.kind].needs.items():
        value = each.step.value(field)
        is_list = isinstance(value, tuple)
        for name in value if is_list else [value]:
            if name is None:
                continue
            named = families.get(name) or ((name,) if name in steps else ())
            if not named:
                raise UserError(
                    f"{place}.{field}={format_value(name)} is no step; "
                    f"{nearest(name, list(families))}"
                )
            makes = KINDS[steps[named[0]].kind].makes
            if makes not in wanted:
                raise UserError(
                    f"{place}.{field}={name} makes {NOUNS[makes]}, and {field} needs "
                    f"{' or '.join(NOUNS[kind] for kind in wanted)}; name another step."
                )
            if KINDS[each.kind].needs_one(field) and steps[named[0]].has_seeds:
                raise UserError(
                    f"{place}.{field}={name} trains several seeds, and {field} needs one run; name "
                    "a step without `seeds`."
                )
            if len(named) > 1 and not is_list:
                raise UserError(
                    f"{place}.{field}={name} are {len(named)} steps; name one of them, such as "
                    f"{named[0]}."
                )
            inputs[field] = (*inputs.get(field, ()), *named)
    return replace(each, inputs=inputs)


def _ordered(steps: Mapping[str, GraphStep], source: str) -> dict[str, GraphStep]:
    """Return steps, each after those that it needs, else in the file's order. Raises UserError for
    a circle.
    """
    found: dict[str, GraphStep] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            circle = [*above[above.index(name) :], name]
            raise UserError(
                f"{source}: steps.{name} needs itself ({' -> '.join(circle)}); remove one of these "
                "references."
            )
        if name not in found:
            for each in steps[name].needed:
                visit(each, (*above, name))
            found[name] = steps[name]

    for name in steps:
        visit(name, ())
    return found


def graph_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of such files."""
    from pydantic import create_model

    from ditlab.spec.schema import file_schema

    shown = create_model(
        "StepsFile",
        __base__=StepsFile,
        __doc__=StepsFile.__doc__,
        steps=(dict[StepName, AnyStep], StepsFile.model_fields["steps"]),
    )
    return file_schema(shown, "DiTLab graph of steps")
