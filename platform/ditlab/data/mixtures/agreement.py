"""Agreement of the columns of a mixture's parts."""

from collections.abc import Callable, Iterable, Mapping

from denoisers.contract import ANY
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.manifest import StoredColumn
from ditlab.data.text.tokenizer import TOKENIZER_NAME
from ditlab.errors import UserError

DIFFER = "a model reads it of all parts alike, so import the parts alike, or take one out of data.parts."
SHAPES_DIFFER = "data.draw=sample puts both in one batch; set data.draw to batch."
PADDED = ("caption", "text", "text_mask")
"""Columns of captions, whose rows end with zeros: rows of a store of shorter captions get more of them."""


def check_tokenizers(stores: Mapping[str, AnyStore]) -> None:
    """Raise UserError for parts whose tokens are not of one tokeniser."""
    digests = {name: store.manifest.attachments.get(TOKENIZER_NAME) for name, store in stores.items()}
    first, *others = digests
    for name in others:
        if digests[name] != digests[first]:
            theirs = "has tokens of another tokeniser than" if digests[name] else "has no tokeniser, unlike"
            raise UserError(
                f"data.parts.{name} {theirs} data.parts.{first}, and one model reads both; import the texts with one "
                "tokeniser (`ditlab data import text --tokenizer`)."
            )


def column_problems(stores: Mapping[str, AnyStore]) -> dict[str, str]:
    """Return what keeps each column that not all parts hold alike from being read, as a clause, by the column's name.

    Sizes of axes may differ, their number not.
    """
    problems = {}
    for column in dict.fromkeys(name for store in stores.values() for name in store.columns):
        having = {part: store.columns[column] for part, store in stores.items() if column in store.columns}
        without = [part for part in stores if part not in having]
        if without:
            held = ", ".join(stores[without[0]].columns)
            problems[column] = f"data.parts.{without[0]} holds no column '{column}' (it holds {held})"
        elif difference := _difference(column, having):
            problems[column] = difference
    return problems


def shape_problems(stores: Mapping[str, AnyStore], columns: Iterable[str]) -> dict[str, str]:
    """Return the columns of several shapes, with a clause on the parts that hold them."""
    problems = {}
    for column in columns:
        padded = slice(1 if column in PADDED else 0, None)
        shapes = {part: store.columns[column].shape[padded] for part, store in stores.items()}
        first = next(iter(shapes))
        other = next((part for part in shapes if ANY in shapes[part] or shapes[part] != shapes[first]), None)
        if other is not None:
            than = "" if other == first else f", data.parts.{first} {_format_shape(shapes[first])}"
            problems[column] = f"data.parts.{other} holds {column} {_format_shape(shapes[other])}{than}"
    return problems


def _format_shape(shape: tuple[int, ...]) -> str:
    return str(shape).replace(str(ANY), "any")


_MEANINGS: tuple[Callable[[StoredColumn], str], ...] = (
    lambda column: f"as {column.dtype}",
    lambda column: f"with {len(column.shape)} axes",
    lambda column: "in the range {:g} to {:g}".format(*column.value_range) if column.value_range else "without a range",
    lambda column: "without classes" if column.num_classes is None else f"with num_classes={column.num_classes}",
    lambda column: f"divided by {column.divisors}" if column.divisors else "undivided",
)


def _difference(name: str, parts: Mapping[str, StoredColumn]) -> str:
    """Return a clause on the first difference of two parts' columns beside sizes; empty where there is none."""
    first, *others = parts
    for other in others:
        for meaning in _MEANINGS:
            ours, theirs = meaning(parts[first]), meaning(parts[other])
            if ours != theirs:
                return f"data.parts.{other} holds {name} {theirs}, data.parts.{first} {ours}"
        ours_named, theirs_named = parts[first].names, parts[other].names
        if ours_named != theirs_named:
            pairs = zip(ours_named, theirs_named, strict=False)
            entry = next((place for place, (one, two) in enumerate(pairs, start=1) if one != two), 0)
            if not entry:
                return (
                    f"data.parts.{other} has {len(theirs_named)} names for {name}, data.parts.{first} {len(ours_named)}"
                )
            return (
                f"data.parts.{other} has '{theirs_named[entry - 1]}' as name {entry} of {name}, data.parts.{first} "
                f"'{ours_named[entry - 1]}'"
            )
    return ""
