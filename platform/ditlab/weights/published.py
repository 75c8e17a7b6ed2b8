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

from ditlab.errors import UserError, nearest
from ditlab.home import Home
from ditlab.parts import OF_ADDONS, absent_part, load_part, named
from ditlab.weights.files import WeightFiles
from ditlab.weights.rules import AnyRule, Fit, Shapes, Tensors, fit_tensors, read_published
from ditlab_models.families import find_family

MOST_LISTED = 5
"""Tensors that a message lists."""


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
    notes: Callable[[Mapping[str, Any]], Sequence[str]] = lambda model: ()
    """Return sentences on what of `model` is assumed."""
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
    except ValidationError as error:
        raise UserError(str(error.errors()[0]["msg"])) from None
    with torch.device("meta"):
        network: Any = family.build_network(spec)
    built: nn.Module = network
    return built


def _without_interop(known: Mapping[str, WeightsFormat]) -> str:
    """Return a clause on the add-on of published layouts where it is not here."""
    lacking = [name for name in OF_ADDONS["weight format"] if name not in known]
    if lacking:
        return f"; the add-on interop, which is not here, knows {', '.join(lacking)}"
    return ""


@dataclass(frozen=True)
class PublishedWeights:
    """Weights of one network, read."""

    files: WeightFiles
    format: WeightsFormat
    tensors: dict[str, Tensor]
    """Tensors by published name."""
    taken: str
    """Phrase on what was taken of the files; empty: all."""

    @classmethod
    def open(
        cls, place: str, option: str, home: Home, format: str = "auto", revision: str = ""
    ) -> PublishedWeights:
        """Open the weights at a place (`WeightFiles.find`) in a format by name. `option` names the
        place in messages.

        Raises UserError for files that cannot be read, and for a format that is unknown.
        """
        known = known_formats()
        if format != "auto" and format not in known:
            reason = absent_part("weight format", format)
            if reason:
                raise UserError(reason)
            name = "--format"
            if option.endswith("from"):
                name = option.replace("from", "format")
            raise UserError(
                f"{name}={format} is no format of weights; {nearest(format, ['auto', *known])}"
            )
        files = WeightFiles.find(place, option, home, revision)
        tensors, taken = files.read()
        if format != "auto":
            return cls(files, known[format], tensors, taken)
        for each in known.values():
            if all(mark in tensors for mark in each.marks) and each.recognise(tensors, files):
                return cls(files, each, tensors, taken)
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

    def fit(self, network: Any) -> Fit:
        """Compare the weights with a network's parameters and buffers, which may lie on the meta
        device.
        """
        shapes = {name: tuple(each.shape) for name, each in network.state_dict().items()}
        return fit_tensors(read_published(self.format.rules, self.tensors, shapes), shapes)

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
