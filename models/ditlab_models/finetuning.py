"""Fine-tuning by patterns of names: parameters that are frozen, and Linears that LoRA adapts. No
torch at import.

Parameters of the network are named by their path in it (`blocks.0.mlp.up.weight`), those that a
loss trains by `objective.` and theirs. A pattern (`fnmatch`, where `*` goes across dots) takes what
it matches, or a module that it lies in: `blocks.0` and `blocks.0.*` are all of the first block.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Protocol

from pydantic import Field, field_validator

from ditlab_models.contract import PositiveFloat, PositiveInt, Spec

if TYPE_CHECKING:
    from torch import nn

Pattern = Annotated[str, Field(min_length=1, max_length=200)]
"""Pattern of names of parameters or modules."""


class LoRA(Spec):
    """Low-rank adaptation of Linears (Hu et al. 2021, arXiv:2106.09685): W x + (alpha / rank) B A
    x.
    """

    rank: PositiveInt = 8
    """Rank of B A."""
    alpha: PositiveFloat = 16.0
    """Numerator of the factor alpha / rank."""
    targets: Annotated[tuple[Pattern, ...], Field(strict=False)]
    """Patterns of the Linears that are adapted: `["*.attention.*", "*.mlp"]`."""

    @field_validator("targets")
    @classmethod
    def _some(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        if not targets:
            raise ValueError(
                "training.lora.targets=[] names no Linear; name some, such as "
                '["*.attention.*"], or set training.lora to null.'
            )
        return targets


class FineTuning(Protocol):
    """Fields of `training` that say which parameters of a model are trained."""

    @property
    def freeze(self) -> tuple[str, ...] | None:
        """Patterns of base parameters that stay as they are; None: none, with `lora` all of the
        network.
        """
        ...

    @property
    def lora(self) -> LoRA | None:
        """Adapters, which are trained always; None: none."""
        ...


def parameter_label(name: str) -> str:
    """Return the name by which patterns know a parameter of a module that holds `network` and
    `objective`.
    """
    return name.removeprefix("network.")


def matches(pattern: str, name: str) -> bool:
    """Return True if a pattern matches a dotted name, or the beginning of it that names a module
    around it.
    """
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:stop]), pattern) for stop in range(1, len(parts) + 1))


def select(option: str, patterns: Iterable[str], names: Iterable[str], what: str) -> set[str]:
    """Return the names that any pattern matches. Raises ValueError for a pattern that matches
    none.
    """
    names = list(names)
    found = set[str]()
    for pattern in patterns:
        own = {name for name in names if matches(pattern, name)}
        if not own:
            near = ", ".join(_near_names(pattern, names))
            raise ValueError(f"{option}={pattern!r} matches no {what}; names here are like {near}.")
        found |= own
    return found


def _near_names(pattern: str, names: list[str]) -> list[str]:
    """Return three names, of parameters or of modules around them, that are like a pattern."""
    known = set[str]()
    for name in names:
        parts = name.split(".")
        known |= {".".join(parts[:stop]) for stop in range(1, 9)}
    near = difflib.get_close_matches(pattern, sorted(known), n=3, cutoff=0.3)
    return near or sorted(names)[:3]


def fine_tune(
    network: nn.Module,
    objective_modules: nn.Module | None,
    tuning: FineTuning,
    seed: Callable[[str], int] | None = None,
) -> None:
    """Adapt and freeze a fresh model in place, before anything trains or partitions it; nothing,
    without tuning.

    `seed` gives that of an adapter by its module's name; None: for shapes alone. Raises ValueError
    for a pattern that matches nothing, and where nothing would be trained.
    """
    if tuning.lora is None and tuning.freeze is None:
        return
    own = dict(network.named_parameters())
    base = dict(own)
    if objective_modules is not None:
        for name, parameter in objective_modules.named_parameters():
            base[f"objective.{name}"] = parameter
    if tuning.freeze is None:
        frozen = set(own)
    else:
        frozen = select("training.freeze", tuning.freeze, base, "parameter")
    for name in frozen:
        base[name].requires_grad_(False)
    lora = tuning.lora
    if lora:
        from ditlab_models.layers.lora import adapt, is_adaptable

        linears = {name: module for name, module in network.named_modules() if is_adaptable(module)}
        chosen = select("training.lora.targets", lora.targets, linears, "Linear of the network")
        for name in sorted(chosen):
            adapt(linears[name], lora.rank, lora.alpha, seed and seed(name))
    elif len(frozen) == len(base):
        raise ValueError(
            f"training.freeze={list(tuning.freeze or ())} freezes every parameter; leave some "
            "to train, or adapt Linears by training.lora."
        )
