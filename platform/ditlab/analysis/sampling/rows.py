"""Real rows that samples complete or take their conditions from."""

from collections.abc import Iterator, Sequence
from typing import Any

from denoisers.contract import BatchField, SampleRequest
from ditlab.analysis.saved_run import SavedRun
from ditlab.data.loading.batches import check_fields
from ditlab.data.loading.held_out import hold_out_blocks
from ditlab.data.named_stores import open_named_store
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.inputs.conditions import DEFAULT_NUM_SAMPLES, SampleConditions, num_selected_rows, rows_for_samples


def rows_for(
    saved: SavedRun, fields: Sequence[BatchField], choice: str | None, sampler: Any, request: SampleRequest
) -> View | None:
    """The rows to complete (`chosen_rows`), or to take conditions from where the request has none; None: neither.

    Raises UserError for `--data` where no rows are completed.
    """
    if sampler.takes_rows == "completed":
        return chosen_rows(saved, fields, choice)
    if choice is not None:
        raise UserError(
            f"--data {choice}: this run's family draws from noise alone and completes no rows; leave it out."
        )
    return rows_for_samples(saved.data()) if sampler.takes_rows == "conditions" and not request.prompts else None


def chosen_rows(saved: SavedRun, fields: Sequence[BatchField], choice: str | None) -> View:
    """The rows that `--data` names: `held_out`, `train` or a store; without it, the run's held-out rows.

    Raises UserError where nothing is held out, and for a store whose fields differ from those of the run's data.
    """
    data = saved.data()
    if choice is None:
        if not len(data.held_out):
            saved.warn(f"{data.note or 'nothing is held out'} Training rows are completed instead.")
        return rows_for_samples(data)
    if choice == "train":
        return data.train
    if choice == "held_out":
        if not len(data.held_out):
            raise UserError("--data held_out: this run holds nothing out; use --data train, or name a store's folder.")
        return data.held_out
    store = open_named_store("--data", choice, saved.home)
    view = View(store, hold_out_blocks(store, 0.0)[0], f"--data {choice}")  # all rows, without a list of them
    check_fields(view, fields)
    _check_names(view, data.train, fields)
    return view


def remarks(
    sampler: Any, num: int | None, conditions: SampleConditions, view: View, fields: Sequence[BatchField]
) -> Iterator[str]:
    """Remarks on the rows that are completed: fewer than requested, not all, or a note of the sampler."""
    assert conditions.rows is not None
    chosen = num_selected_rows(sampler, view, fields)
    requested = num or (DEFAULT_NUM_SAMPLES if chosen is None else conditions.num)
    if conditions.num < requested:
        yield f"--num {requested}: {view.origin} has {conditions.num} rows to complete; all of them are drawn."
    elif chosen is not None and conditions.num < chosen:
        yield f"--num {num}: {conditions.num} of {chosen:,} rows to complete in {view.origin}; leave --num out for all."
    if note := sampler.note(conditions.rows):
        yield f"{note}."


def scales(view: View, fields: Sequence[BatchField]) -> dict[str, Any]:
    """Metadata of a table of completed rows: the divisors of each field's entries, by field and name."""
    found = {}
    for field in fields:
        column = view.columns[field.name]
        names = column.names or tuple(map(str, range(len(column.divisors))))
        if column.divisors:
            found[field.name] = dict(zip(names, column.divisors, strict=True))
    return {"divisors": found}


def _check_names(view: View, trained: View, fields: Sequence[BatchField]) -> None:
    """Raise UserError where an entry of a field has another name than in the data that the run was trained on."""
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
