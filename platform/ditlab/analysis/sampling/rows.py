"""Which real rows `ditlab sample` completes, and in what units, or takes captions from."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from denoisers.contract import BatchField, SampleRequest
from ditlab.analysis.saved_run import SavedRun
from ditlab.cli.common import say
from ditlab.data.loading.field_checks import check_fields
from ditlab.data.splits import open_place
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.inputs.conditions import DEFAULT_NUM, Conditions, num_chosen, shown_rows


def rows_for(
    saved: SavedRun, fields: Sequence[BatchField], choice: str | None, sampler: Any, request: SampleRequest
) -> View | None:
    """The rows to complete, as `chosen_rows` has them; those to take conditions from, where the request names none; or
    none. Raises UserError for `--data` where no rows are completed."""
    if sampler.takes_rows == "completed":
        return chosen_rows(saved, fields, choice)
    if choice is not None:
        raise UserError(
            f"--data {choice}: this run's family draws from noise alone and completes no rows; leave it out."
        )
    return shown_rows(saved.data()) if sampler.takes_rows == "conditions" and not request.prompts else None


def chosen_rows(saved: SavedRun, fields: Sequence[BatchField], choice: str | None) -> View:
    """The rows that `--data` means: `held_out`, `train` or a store; without it, the run's held-out ones.

    Raises UserError where nothing is held out, and for a store that is not what the run was trained on.
    """
    data = saved.data()
    if choice is None:
        if not len(data.held_out):
            say(f"{data.note or 'nothing is held out'} Training rows are completed instead.")
        return shown_rows(data)
    if choice == "train":
        return data.train
    if choice == "held_out":
        if not len(data.held_out):
            raise UserError("--data held_out: this run holds nothing out; use --data train, or name a store's folder.")
        return data.held_out
    store = open_place("--data", choice, saved.home)
    view = View(store, np.arange(len(store)), f"--data {choice}")
    check_fields(view, fields)
    _check_names(view, data.train, fields)
    return view


def say_which(sampler: Any, num: int | None, conditions: Conditions, view: View, fields: Sequence[BatchField]) -> None:
    """Says of the rows that are completed what a person would not expect: fewer than asked for, or not all."""
    assert conditions.rows is not None
    chosen = num_chosen(sampler, view, fields)
    asked = num or (DEFAULT_NUM if chosen is None else conditions.num)
    if conditions.num < asked:
        say(f"--num {asked}: {view.origin} has {conditions.num} rows to complete; all of them are drawn.")
    elif chosen is not None and conditions.num < chosen:
        say(f"--num {num}: {conditions.num} of {chosen:,} rows to complete in {view.origin}; leave --num out for all.")
    if note := sampler.note(conditions.rows):
        say(f"{note}.")


def scales(view: View, fields: Sequence[BatchField]) -> dict[str, Any]:
    """What the entries of completed fields were divided by, for the table's metadata: divisors by name by field."""
    found = {}
    for field in fields:
        column = view.columns[field.name]
        names = column.names or tuple(map(str, range(len(column.divisors))))
        if column.divisors:
            found[field.name] = dict(zip(names, column.divisors, strict=True))
    return {"divisors": found}


def _check_names(view: View, trained: View, fields: Sequence[BatchField]) -> None:
    """Raises UserError where an entry of a field has another name than in the data that the run was trained on."""
    for field in fields:
        names, expected = view.columns[field.name].names, trained.columns[field.name].names
        if not expected or names == expected:
            continue
        if not names:
            problem = f"has no names for the entries of {field.name}, such as '{expected[0]}'"
        else:
            first = next(i for i, pair in enumerate(zip(names, expected, strict=True)) if pair[0] != pair[1])
            problem = f"has '{names[first]}' as entry {first + 1} of {field.name}, not '{expected[first]}'"
        raise UserError(
            f"{view.origin} {problem}, as the run's own data has it ({trained.origin}); import it with the same "
            "features in the same order."
        )
