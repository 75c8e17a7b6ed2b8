"""Classes of a run's data, and those of the label table that it trains or begins from: compared by
name where both are known, else said.
"""

from __future__ import annotations

from collections.abc import Sequence

CLASSES_NAME = "classes.txt"
"""File of an export with the names of its classes, as `ditlab data import images --classes` takes
it.
"""
REMEDY = "`ditlab data import images --classes FILE` fixes the numbers of classes"


def moved_class(owner: str, theirs: Sequence[str], own: Sequence[str], column: str) -> str:
    """Return in a clause the first number of a column that means another class to the owner of a
    label table; empty for none.
    """
    for number, (before, now) in enumerate(zip(theirs, own, strict=False)):
        if before != now:
            return f"class {number} of {column} is {now} in the data, and {before} to {owner}"
    return ""


def unmatched_names(owner: str, theirs: Sequence[str], own: Sequence[str]) -> str:
    """Return a sentence on classes that one side alone names, so that nothing compares them; empty
    where both do, or none.
    """
    if own and not theirs:
        return (
            f"{owner} does not name its classes: class 0 of the data, {own[0]}, is taken for its "
            f"class 0, and so on; {REMEDY}."
        )
    if theirs and not own:
        return (
            f"the data do not name their classes: class 0 is taken for {theirs[0]} of {owner}, "
            "and so on."
        )
    return ""


def unused_numbers(table: int, num: int, names: Sequence[str]) -> str:
    """Return a sentence on data of fewer classes than a label table has; empty for as many."""
    if num >= table:
        return ""
    first = f" (class 0 is {names[0]})" if names else ""
    return (
        f"model.num_classes={table}, and the data have {num} class{'es' if num > 1 else ''}, the "
        f"first of the table{first}; {REMEDY}."
    )


def class_lines(names: Sequence[str]) -> bytes:
    """Content of `CLASSES_NAME`; empty for no names, and for some that are no plain lines."""
    text = "\n".join(names)
    if not names or [line.strip() for line in text.splitlines()] != [*names]:
        return b""
    return f"{text}\n".encode()
