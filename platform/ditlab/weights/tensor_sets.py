"""Sets of tensors in a file of weights: the network's own, its moving averages, and which of them
is taken.

Training scripts save several of them in one file, under keys (`{"model": ..., "ema": ...}`) or
under beginnings of names (`model.`, `ema_model.`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ditlab.selection import Selection

AUTO = "auto"
"""Name of the set that is chosen by the rules of `choose`."""
FILE = "file"
"""Name of the tensors that lie under no key."""
MAX_DEPTH = 8
"""Levels of mappings in a file."""
_NETWORKS = ("state_dict", "model", "module", "network")
"""Keys of a network's own tensors, those taken first at the beginning."""
_AVERAGES = {"ema", "average", "averaged", "avg", "swa", "shadow", "polyak"}
"""Words of keys of moving averages: `model_ema`, `ema_state_dict`, `params_ema`."""
_OTHERS = {"optimizer", "optimizers", "optim", "opt", "scheduler", "schedulers", "scaler", "rng"}
"""Words of keys whose tensors belong to no network."""
_PREFIXES = ("module.", "model.", "network.", "_orig_mod.")
"""Beginnings that wrappers of modules give to every name."""
_BUFFERS = ("inv_freq", "num_batches_tracked", "running_mean", "running_var")
"""Ends of names of buffers, which averages kept as lists lack."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


class UnreadableSets(ValueError):
    """A file whose sets cannot be told, or from which none can be taken; the message is a
    sentence's end.
    """


@dataclass(frozen=True)
class TensorSet:
    """Tensors of one network, or of its average, in a file."""

    name: str
    """Keys above them, joined by dots; empty for the file itself."""
    tensors: Mapping[str, Tensor]
    unnamed: tuple[Tensor, ...] = ()
    """Tensors of an average that keeps them as a list, in the order of the network's."""
    reason: str = ""
    """Where the names or other tensors are taken from another set, which."""

    @property
    def is_average(self) -> bool:
        """True where a key above them names a moving average."""
        return any(map(_is_average, self.name.split(".")))

    @property
    def label(self) -> str:
        """Name by which a user chooses the set."""
        return self.name or FILE

    @property
    def quoted(self) -> str:
        """The set in a sentence."""
        if self.name:
            return f"its `{self.name}`"
        return "its other tensors"


def take_tensors(
    content: Mapping[Any, Any], wanted: str = AUTO, option: str = ""
) -> tuple[dict[str, Tensor], list[Selection]]:
    """Return the tensors of one set of a file's content by name, and what was chosen for that.

    `wanted` names the set, `option` what the user chooses it by, for messages. Raises
    UnreadableSets where nothing says which set is meant, and where there is none.
    """
    chosen, others = choose(find_sets(content), wanted, option)
    choices = []
    if chosen.name or others:
        skipped = tuple(_with_reason(each) for each in others)
        choices.append(Selection(chosen.quoted, skipped, chosen.reason, option))
    tensors = dict(chosen.tensors)
    while prefix := _common_prefix(tensors):
        tensors = {name.removeprefix(prefix): each for name, each in tensors.items()}
        choices.append(Selection(f"names without `{prefix}`"))
    return tensors, choices


def find_sets(content: Mapping[Any, Any]) -> list[TensorSet]:
    """Return the sets of tensors of a file's content, in its order.

    Raises UnreadableSets for content that holds itself, or more than `MAX_DEPTH` levels.
    """
    found: list[TensorSet] = []
    for each in _walk(content, (), ()):
        found.extend(_split_average(each))
    return found


def choose(
    sets: Sequence[TensorSet], wanted: str, option: str
) -> tuple[TensorSet, list[TensorSet]]:
    """Return the set that is taken, and the others.

    A moving average is taken before the network's own tensors, as published samples are drawn with
    it. Raises UnreadableSets as `take_tensors` does.
    """
    named = [_named(each, sets) for each in sets]
    usable = [each for each in named if each.tensors]
    if not usable:
        raise UnreadableSets("holds no tensors by name; name a file of a network's weights")
    if wanted == AUTO:
        chosen = _chosen(usable, option)
    else:
        chosen = _wanted(usable, wanted, option)
    return chosen, [each for each in named if each is not chosen]


def _wanted(usable: Sequence[TensorSet], wanted: str, option: str) -> TensorSet:
    for each in usable:
        if each.label == wanted:
            return each
    raise UnreadableSets(
        f"has no set of tensors {wanted!r} ({option}), but {_listed(usable)}; name one of "
        f"those, or leave it at {AUTO}"
    )


def _chosen(usable: Sequence[TensorSet], option: str) -> TensorSet:
    """Return the only average; without averages the only set, or the one under a usual key."""
    averages = [each for each in usable if each.is_average]
    among = averages or usable
    if len(among) == 1:
        return among[0]
    if not averages:
        for key in _NETWORKS:
            for each in among:
                if each.name == key:
                    return each
    what = "averages" if averages else "sets of tensors"
    remedy = "save the one that you mean in a file of its own"
    if option:
        remedy = f"choose one by {option}=NAME"
    raise UnreadableSets(
        f"holds {len(among)} {what} ({_listed(among)}), and nothing says which is meant; {remedy}"
    )


def _listed(sets: Sequence[TensorSet]) -> str:
    return ", ".join(each.label for each in sets)


def _with_reason(skipped: TensorSet) -> str:
    if skipped.tensors:
        return skipped.quoted
    return (
        f"{skipped.quoted}, which has tensors without names ({len(skipped.unnamed)}) that fit no "
        "other set"
    )


def _walk(
    content: Mapping[Any, Any], path: tuple[str, ...], above: tuple[int, ...]
) -> Iterator[TensorSet]:
    """Yield the set of each mapping with tensors."""
    if id(content) in above:
        raise UnreadableSets("holds a mapping that holds itself; save the tensors by name alone")
    if len(path) > MAX_DEPTH:
        raise UnreadableSets(
            f"holds more than {MAX_DEPTH} levels of mappings; save the tensors by name alone"
        )
    tensors = {str(key): each for key, each in content.items() if isinstance(each, Tensor)}
    inside: list[TensorSet] = []
    for key, value in content.items():
        name = str(key)
        if isinstance(value, Mapping) and not _is_other(name):
            inside.extend(_walk(value, (*path, name), (*above, id(content))))
        elif _is_list(value) and any(map(_is_average, (*path, name))):
            inside.append(TensorSet(".".join((*path, name)), {}, tuple(value)))
    is_more_than_counters = any(each.numel() > 1 for each in tensors.values())
    if tensors and (is_more_than_counters or not inside):
        yield TensorSet(".".join(path), tensors)
    yield from inside


def _is_list(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(each, Tensor) for each in value)
    )


def _words(key: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(key)}


def _is_average(key: str) -> bool:
    return not _AVERAGES.isdisjoint(_words(key))


def _is_other(key: str) -> bool:
    return not _is_average(key) and not _OTHERS.isdisjoint(_words(key))


def _split_average(whole: TensorSet) -> list[TensorSet]:
    """Split a set whose names hold an average of the others under a beginning of their own."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, each in whole.tensors.items():
        first, _, rest = name.partition(".")
        if rest and _is_average(first):
            parts.setdefault(first, {})[rest] = each
    own = dict(whole.tensors)
    averages = []
    for first, part in parts.items():
        others = {
            name: each for name, each in whole.tensors.items() if not name.startswith(f"{first}.")
        }
        # A layer that is called an average has names of its own.
        if _by_names(part, _without_prefixes(others)):
            averages.append(TensorSet(".".join(filter(None, (whole.name, first))), part))
            own = {name: own[name] for name in own if name in others}
    if not averages or not own:
        return [whole]
    return [replace(whole, tensors=own), *averages]


def _without_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors without beginnings that most of their names have, which counters lack."""
    for prefix in (*_PREFIXES, "net.", "online_model."):
        found = {
            name.removeprefix(prefix): each
            for name, each in tensors.items()
            if name.startswith(prefix)
        }
        if 2 * len(found) > len(tensors):
            return found
    return dict(tensors)


def _named(average: TensorSet, sets: Sequence[TensorSet]) -> TensorSet:
    """Return an average with names and buffers of the network beside it.

    An average may be a list in the order of the network's parameters, have names without dots, or
    lack buffers. One that fits no other set stays as it is.
    """
    if not average.is_average:
        return average
    for own in sets:
        if own.is_average or not own.tensors:
            continue
        network = _without_prefixes(own.tensors)
        if average.unnamed:
            renamed = _by_order(average.unnamed, network)
        else:
            renamed = _by_names(_without_prefixes(average.tensors), network)
        if not renamed:
            continue
        buffers = {
            name: each
            for name, each in network.items()
            if name not in renamed and name.endswith(_BUFFERS)
        }
        lent = []
        if renamed.keys() != _without_prefixes(average.tensors).keys():
            lent.append("names")
        if buffers:
            lent.append(f"{len(buffers)} buffer{'s' if len(buffers) > 1 else ''}")
        if not lent:
            return average
        reason = f"with {' and '.join(lent)} of {own.quoted}"
        return replace(average, tensors={**buffers, **renamed}, unnamed=(), reason=reason)
    return average


def _by_order(values: Sequence[Tensor], network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name an average's list; {} where its shapes are others than those of the network's
    parameters.
    """
    names = [name for name in network if not name.endswith(_BUFFERS)]
    if [each.shape for each in values] != [network[name].shape for name in names]:
        return {}
    return dict(zip(names, values, strict=True))


def _by_names(values: Mapping[str, Tensor], network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give an average the network's dots, without counters of its own; {} where names differ."""
    if values.keys() <= network.keys():
        return dict(values)
    dotted = {name.replace(".", ""): name for name in network}
    tensors = {name: each for name, each in values.items() if each.numel() > 1 or name in dotted}
    if not tensors or len(dotted) < len(network) or not tensors.keys() <= dotted.keys():
        return {}
    return {dotted[name]: each for name, each in tensors.items()}


def _common_prefix(names: Collection[str]) -> str:
    """Return the beginning of a wrapper that all names have; empty for none."""
    for prefix in _PREFIXES:
        if names and all(name.startswith(prefix) for name in names):
            return prefix
    first = next(iter(names), "").partition(".")[0]
    if _is_average(first) and all(name.startswith(f"{first}.") for name in names):
        return f"{first}."
    return ""
