"""Published weights: their format, the spec of their network, and how they fill a network of ours.

DiTLab's own exports are one format; add-ons and other packages bring others
(`ditlab.parts.Parts.weight_formats`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from ditlab.errors import UserError, first_line, nearest
from ditlab.home import Home
from ditlab.parts import OF_ADDONS, absent_part, load_part, named
from ditlab.selection import MOST_LISTED, Selection
from ditlab.spec.overrides import explain
from ditlab.weights.files import WeightFiles
from ditlab.weights.rules import AnyRule, Fit, Shapes, Tensors, fit_tensors, read_published
from ditlab.weights.tensor_sets import AUTO
from ditlab_models.families import find_family
from ditlab_models.layers.lora import A, B


@dataclass(frozen=True)
class WeightsFormat:
    """Names and layout of a published network's tensors."""

    name: str
    about: str
    """Network and source, for people."""
    marks: tuple[str, ...]
    """Names that all files of it have, and those of other formats lack; () where `recognise`
    decides alone.
    """
    rules: tuple[AnyRule, ...]
    model: Callable[[Shapes, WeightFiles], Mapping[str, Any]]
    """Return the section `model` of the network, from shapes and what lies beside the files.

    Raises ValueError, with a whole sentence, for a network that no spec of ours describes.
    """
    recognise: Callable[[Tensors, WeightFiles], bool] = lambda tensors, files: True
    """Return True for files of this format, among those that have its marks."""
    certain: tuple[str, ...] = ()
    """Fields of `model` that shapes do not show and that the outputs depend on: another value is
    refused.
    """
    notes: Callable[[Mapping[str, Any], WeightFiles], Sequence[str]] = lambda model, files: ()
    """Return sentences on what of `model` is assumed, as nothing in or beside the files says it."""
    classes: Callable[[WeightFiles], Sequence[str]] = lambda files: ()
    """Return the names of the classes of the label table, as far as they lie beside the files."""


def known_formats() -> dict[str, WeightsFormat]:
    """Return every format by name, sorted."""
    targets = {"export": "ditlab.weights.own_export:FORMAT", **named("weight_formats")}
    return {
        name: load_part("weight format", name, target) for name, target in sorted(targets.items())
    }


def outline(model: Mapping[str, Any]) -> nn.Module:
    """Build the network of a section `model` on the meta device. Raises UserError for one that is
    not valid.
    """
    family = find_family(model["family"])
    assert family is not None, f"there is no family {model['family']}"
    try:
        spec = family.model.model_validate(dict(model))
        with torch.device("meta"):
            network: Any = family.build_network(spec)
    except ValidationError as error:
        mistakes = " ".join(explain(error, family.model, model))
        raise UserError(
            f"shapes and configuration of the weights give no network: {mistakes}"
        ) from None
    except (ArithmeticError, RuntimeError, ValueError) as error:
        raise UserError(
            f"the {model['family']} network that the weights' shapes give cannot be built "
            f"({first_line(error)}); name whole weights of a known format."
        ) from None
    built: nn.Module = network
    return built


def _without_interop(known: Mapping[str, WeightsFormat]) -> str:
    """Return a clause on the add-on of published layouts where it is not here."""
    lacking = [name for name in OF_ADDONS["weight format"] if name not in known]
    if lacking:
        return f"; the add-on interop, which is not here, knows {', '.join(lacking)}"
    return ""


def _beside(option: str, name: str) -> str:
    """Return the option of weights beside the one that names their place."""
    if option.endswith(".from"):
        return f"{option.removesuffix('from')}{name}"
    return f"--{name}"


def _is_rounded(value: Tensor) -> bool:
    """Return True for float64 numbers that float32 does not hold."""
    if value.dtype != torch.float64 or value.is_meta:
        return False
    return not torch.equal(value.float().double(), value)


@dataclass(frozen=True)
class PublishedWeights:
    """Weights of one network, read."""

    files: WeightFiles
    format: WeightsFormat
    tensors: dict[str, Tensor]
    """Tensors by published name."""
    choices: tuple[Selection, ...]
    """Selections among several files, and among the sets of tensors in them."""

    @classmethod
    def open(
        cls,
        place: str,
        option: str,
        home: Home,
        format: str = "auto",
        revision: str = "",
        wanted: str = AUTO,
    ) -> PublishedWeights:
        """Open the weights at a place (`WeightFiles.find`) in a format by name; `wanted` names the
        set of tensors where a file holds several. `option` names the place in messages.

        Raises UserError for files that cannot be read, and for a format that is unknown.
        """
        known = known_formats()
        if format != "auto" and format not in known:
            reason = absent_part("weight format", format)
            if reason:
                raise UserError(reason)
            raise UserError(
                f"{_beside(option, 'format')}={format} is no format of weights; "
                f"{nearest(format, ['auto', *known])}"
            )
        files = WeightFiles.find(place, option, home, revision)
        tensors, choices = files.read(wanted, _beside(option, "weights"))
        if format != "auto":
            return cls(files, known[format], tensors, tuple(choices))
        for each in known.values():
            if all(mark in tensors for mark in each.marks) and each.recognise(tensors, files):
                return cls(files, each, tensors, tuple(choices))
        names = ", ".join(list(tensors)[:MOST_LISTED])
        raise UserError(
            f"{files.option} has the layout of no known format ({', '.join(known)}): "
            f"{len(tensors)} tensors, {names}; rename them as one of those has them "
            f"(docs/weights.md), or name other weights{_without_interop(known)}."
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor by published name."""
        return {name: tuple(each.shape) for name, each in self.tensors.items()}

    def model(self) -> dict[str, Any]:
        """Return the section `model` of the spec of these weights. Raises UserError where no spec
        describes them.
        """
        try:
            return dict(self.format.model(self.shapes, self.files))
        except KeyError as error:
            raise UserError(
                f"{self.files.option} is not of the format {self.format.name}: {error.args[0]} "
                "is missing; name another format, or leave it at auto."
            ) from None
        except ValueError as error:
            raise UserError(f"{self.files.option}: {error}") from None
        except (ArithmeticError, AttributeError, IndexError, TypeError) as error:
            raise UserError(
                f"{self.files.option} does not fit the format {self.format.name}: shapes or the "
                f"config.json beside it give no network ({first_line(error)}); name another "
                "format, or bring back the files as published."
            ) from None

    def fit(self, network: Any) -> Fit:
        """Compare the weights with a network's parameters and buffers, which may lie on the meta
        device. Adapters are no part of what is loaded.
        """
        own = {
            name: each
            for name, each in network.state_dict().items()
            if not name.endswith((f".{A}", f".{B}"))
        }
        shapes = {name: tuple(each.shape) for name, each in own.items()}
        fit = fit_tensors(read_published(self.format.rules, self.tensors, shapes), own)
        fit.rounded.extend(name for name, each in self.tensors.items() if _is_rounded(each))
        return fit

    def refusal(self, fit: Fit) -> str:
        """Return the sentence on weights that do not fill a network; empty where they do."""
        problems = fit.problems
        if not problems:
            return ""
        more = ""
        if len(problems) > MOST_LISTED:
            more = f" and {len(problems) - MOST_LISTED} more"
        return (
            f"{self.files.option} ({self.format.name}) does not fit the network in {len(problems)} "
            f"tensor{'s' if len(problems) > 1 else ''}: {'; '.join(problems[:MOST_LISTED])}{more}"
        )
