"""A graph of steps as a file describes it: kinds of steps, references between them, their order. No
torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from ditlab.errors import UserError, nearest
from ditlab.spec.experiment import NamedSpec, check_name
from ditlab.spec.files import read_with_parents, spec_name
from ditlab.spec.overrides import assign, parse_overrides, validate
from ditlab.spec.values import format_value
from ditlab_models.contract import Spec

Result = Literal["store", "run", "sweep", "files"]
"""Kind of result of a step, for those that need it."""
StepName = str
Several = Annotated[tuple[StepName, ...], Field(min_length=1, strict=False)]
Changes = Annotated[dict[str, Any], Field(default_factory=dict)]
Options = Annotated[dict[str, str | int | float | bool], Field(default_factory=dict)]
Reference = Annotated[
    StepName | None,
    Field(
        default=None,
        description="Step: a sweep whose best values are set, or one whose last weights (a sweep: "
        "its best trial's) the training begins from.",
    ),
]
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

    set: Options
    """Options of `ditlab data import KIND`; paths from the folder of this file on."""
    __annotations__["import"] = Annotated[
        str, Field(description="Kind of data, as `ditlab data import` has them.")
    ]


class EncodeStep(Step):
    """A store with the features of frozen encoders beside its columns."""

    encode: StepName
    """Step whose store is encoded."""
    set: Options
    """Options of `ditlab data encode`; paths from the folder of this file on."""


class TrainStep(Step):
    """A training run."""

    train: str
    """YAML of the experiment, from the folder of this file on."""
    data: StepName | None = None
    """Step whose store is trained on."""
    set: Changes
    """Settings that differ, by dotted path, as `--set` takes them."""
    seeds: int = Field(1, ge=1)
    """Seeds, each a run; several are a group."""
    __annotations__["settings-of"] = Reference
    __annotations__["weights-of"] = Reference
    __annotations__["for"] = Axes


class TuneStep(Step):
    """A sweep."""

    tune: str
    """YAML of the sweep, from the folder of this file on."""
    data: StepName | None = None
    """Step whose store all trials are trained on."""
    set: Changes
    """Settings that differ, by dotted path, as `--set` takes them."""


class EvaluateStep(Step):
    """Held-out metrics of runs, and the quality of their samples."""

    evaluate: Several
    """Steps whose runs are evaluated."""
    quality: NonNegativeInt | None = None
    """Samples whose quality is measured; 0: none."""
    set: Changes
    """Settings that differ from the run's, by dotted path."""


class SampleStep(Step):
    """Samples of a run."""

    sample: StepName
    """Step whose run is sampled."""
    num: PositiveInt | None = None
    """Number of samples."""
    set: Changes
    """Settings that differ from the run's, by dotted path."""
    out: str | None = None
    """Folder for the files, from this file's on; null: in the run's."""


class CompareStep(Step):
    """A page of runs side by side."""

    compare: Several
    """Steps whose runs are compared."""
    out: str | None = None
    """Folder for the files, from this file's on; null: one below DITLAB_HOME."""


class ExportStep(Step):
    """Weights of a run for other programs."""

    export: StepName
    """Step whose weights are exported."""
    format: str = "ditlab"
    """Form, as `ditlab export --format` has them."""
    out: str | None = None
    """Folder for the files, from this file's on; null: one below DITLAB_HOME."""


class Kind(NamedTuple):
    """A kind of steps."""

    spec: type[Step]
    makes: Result
    needs: Mapping[str, tuple[Result, ...]]
    """Results that a field may name, by the field."""


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

    @field_validator("steps")
    @classmethod
    def _check_names(cls, steps: dict[str, Any]) -> dict[str, Any]:
        for name in steps:
            check_name(name)
        return steps


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
    def needed(self) -> tuple[str, ...]:
        """Names of all steps that it needs."""
        return tuple(name for names in self.inputs.values() for name in names)

    @property
    def out(self) -> str | None:
        """Folder for its files that the graph names; None where none is named."""
        return getattr(self.step, "out", None)

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
    families: Mapping[str, tuple[str, ...]]
    """Names of the steps that each name means: several for a step with `for`."""
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
        wanted = set() if names else {*self.steps}
        for name in names:
            if name not in self.families:
                raise UserError(
                    f"STEP={name} is no step of {self.name}; {nearest(name, list(self.families))}"
                )
            wanted.update(self.families[name])
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
    for name, fields in file.steps.items():
        made = {each.name: each for each in _expanded(name, *_validated(name, fields, source))}
        for taken in families.keys() & {name, *made}:
            raise UserError(f"{source}: steps.{name} makes {taken}, another step; rename one.")
        families |= {each: (each,) for each in made} | {name: tuple(made)}
        steps |= made
    _refuse_shared_folders(list(steps.values()), path.parent, source)
    connected = {
        name: _connected(each, steps, families, f"{source}: steps.{name}")
        for name, each in steps.items()
    }
    return Graph(file.name, path.parent, _ordered(connected, source), families, file)


def _override(mapping: dict[str, Any], overrides: Sequence[str]) -> None:
    """Apply `--set` to a file's mapping: `steps.NAME.FIELD=VALUE`, and `steps.NAME.set.PATH=VALUE`.

    Raises UserError for a step that is not there.
    """
    for each in parse_overrides(overrides):
        steps = mapping.get("steps")
        if not each.path.startswith("steps.") or not isinstance(steps, dict):
            mapping.update(assign(mapping, [each], lambda _: StepsFile))
            continue
        rest = each.path.removeprefix("steps.")
        name = max((name for name in steps if rest.startswith(f"{name}.")), key=len, default=None)
        target = steps.get(name)
        field = rest.removeprefix(f"{name}.")
        first, _, path = field.partition(".")
        if isinstance(target, dict) and first in ("set", "for") and path:
            target = target.setdefault(first, {})
            field = path
        if not isinstance(target, dict):
            first = rest.partition(".")[0]
            raise UserError(
                f"{each.source}: steps.{first} is no step; {nearest(first, list(steps))}"
            )
        target[field] = each.value


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
    axes: Mapping[str, Sequence[Any]] = getattr(step, "for", {})
    for number, values in enumerate(product(*axes.values()), start=1):
        each_name = f"{name}-{number}" if axes else name
        yield GraphStep(each_name, kind, step, dict(zip(axes, values, strict=True)), {})


def _refuse_shared_folders(steps: Sequence[GraphStep], folder: Path, source: str) -> None:
    """Raise UserError where two steps would write the same files."""
    writers: dict[Path, str] = {}
    for each in steps:
        if not each.out:
            continue
        first = writers.setdefault((folder / each.out).resolve(), each.name)
        if first != each.name:
            raise UserError(
                f"{source}: steps.{each.name}.out={each.out} is the folder of steps.{first} as "
                "well; name another folder."
            )


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
            named = families.get(name)
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
            if (
                field in ("weights-of", "sample", "export")
                and getattr(steps[named[0]].step, "seeds", 1) > 1
            ):
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
    if each.kind == "compare" and len(inputs["compare"]) < 2:
        raise UserError(f"{place}.compare={inputs['compare'][0]} is one run; name another as well.")
    return replace(each, inputs=inputs)


def _ordered(steps: Mapping[str, GraphStep], source: str) -> dict[str, GraphStep]:
    """Return steps, each after those that it needs. Raises UserError for a circle."""
    sorter = TopologicalSorter({name: each.needed for name, each in steps.items()})
    try:
        return {name: steps[name] for name in sorter.static_order()}
    except CycleError as error:
        circle = error.args[1]
        raise UserError(
            f"{source}: steps.{circle[0]} needs itself ({' -> '.join(circle)}); remove one of "
            "these references."
        ) from None


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
