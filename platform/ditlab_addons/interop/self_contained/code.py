"""Files of code that an exported folder carries, put together from sources: the same sources give
the same bytes.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from ditlab.errors import UserError
from ditlab.flattening.merging import merge_bases
from ditlab.flattening.printing import print_program
from ditlab.flattening.program import Program
from ditlab.flattening.sources import Imported, imports_of
from ditlab.flattening.tightening import tighten
from ditlab.flattening.units import Unit
from ditlab_models.contract import Family, ModelSpec, ObjectiveSpec, SamplingSpec

OWN = ("ditlab", "ditlab_addons", "ditlab_models", "__future__")
"""Packages whose imports a file does not keep."""
END_OF_STAND_INS = "# The definitions above stand for those of a run.\n"
READ = ("draws_per_prompt", "conditions", "solver")
"""Attributes that the code around network and sampler reads, beside those that it names."""
SUBSTITUTES = {"Network": "nn.Module"}


@dataclass(frozen=True)
class TrainedSettings:
    """Settings that the code of a folder is made from."""

    family: Family
    model: ModelSpec
    objective: ObjectiveSpec
    sampling: SamplingSpec
    seed: int
    classes: Sequence[int]
    """Classes of the data; (): all of the model's."""


def torch_module(settings: TrainedSettings) -> str:
    """Return the module that rebuilds a network and samples from it, without DiTLab."""
    return _module(settings, ["module"])


def diffusers_network(settings: TrainedSettings) -> str:
    """Return the module of a network as a model of diffusers."""
    return _module(settings, ["module", "diffusers_network"])


def pipeline() -> str:
    """Return the module of a pipeline of diffusers."""
    return _template("pipeline")


def _module(settings: TrainedSettings, names: Sequence[str]) -> str:
    """Return the family's code with templates of code around it."""
    roots = [
        _method(settings.family, "build_network"),
        _method(settings.family, "build_sampler"),
        Unit("ditlab_models.contract", "Prompt"),
        Unit("ditlab_models.contract", "SampleRequest"),
        Unit("ditlab_models.contract", "TextCodec"),
        Unit("ditlab_models.processes.draws", "draw_samples"),
    ]
    program = Program(
        roots,
        fixed=[settings.model, settings.objective],
        variable=[settings.sampling],
        read=READ,
        substitutes=SUBSTITUTES,
    )
    templates = [_template(name) for name in names]
    others = [each for text in templates for each in _library_imports(text)]
    try:
        imports, definitions = print_program(program, others)
    except ValueError as error:
        raise UserError(str(error)) from None
    constants = [
        f"MODEL = {type(settings.model).__name__}()",
        f"OBJECTIVE = {type(settings.objective).__name__}()",
        f"SAMPLING = {type(settings.sampling).__name__}()",
        f"SEED = {settings.seed}",
        f"CLASSES = {tuple(settings.classes)}",
        f"CHOICES = {_choices(settings.sampling)}",
        f"LEAST = {_least_values(settings.sampling)}",
    ]
    head = ast.get_docstring(ast.parse(templates[0]), clean=False)
    parts = [
        f'"""{head}"""\n',
        "from __future__ import annotations\n",
        imports + "\n",
        tighten(merge_bases(definitions)) + "\n",
        "\n".join(constants) + "\n\n",
        "\n\n".join(_functions(text) for text in templates),
    ]
    return "\n".join(parts)


def _choices(sampling: SamplingSpec) -> dict[str, tuple[Any, ...]]:
    """Return the words that a field takes, by field."""
    found = {}
    for name, field in type(sampling).model_fields.items():
        if get_origin(field.annotation) is Literal:
            found[name] = get_args(field.annotation)
    return found


def _least_values(sampling: SamplingSpec) -> dict[str, float]:
    """Return the least number that a field takes, by field."""
    found = {}
    for name, field in type(sampling).model_fields.items():
        for each in [*field.metadata, *_inner_limits(field.annotation)]:
            least = getattr(each, "ge", None)
            if isinstance(least, int | float):
                found[name] = least
    return found


def _inner_limits(annotation: Any) -> list[Any]:
    """Return the limits of a number that may also be None."""
    found = list[Any]()
    for part in get_args(annotation):
        for each in getattr(part, "__metadata__", ()):
            found += getattr(each, "metadata", [])
    return found


def _method(family: Family, name: str) -> Unit:
    """Return the unit of a family's method."""
    owner = next(kind for kind in type(family).__mro__ if name in vars(kind))
    return Unit(owner.__module__, owner.__name__, name)


def _template(name: str) -> str:
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")


def _library_imports(template: str) -> list[Imported]:
    """Return the imports of a template that are of libraries."""
    found = imports_of(ast.parse(template))
    return [each for each in found if each.module.partition(".")[0] not in OWN]


def _functions(template: str) -> str:
    """Return a template's functions and classes."""
    return template.partition(END_OF_STAND_INS)[2].strip("\n") + "\n"
