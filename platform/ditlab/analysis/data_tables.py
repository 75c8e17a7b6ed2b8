"""The data of an experiment as tables for a terminal and as JSON: sources or parts of a mixture, and columns."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.table import Table

from denoisers.contract import ANY
from ditlab.data.mixture_store import JoinedStore
from ditlab.data.splits import DataSplits
from ditlab.spec.experiment import Experiment


def data_tables(experiment: Experiment, data: DataSplits) -> Iterator[Table]:
    """Tables of the parts, of the columns that all of them hold alike, and of those that they do not."""
    draws = f"drawn by {data.mixture.draw}" if data.mixture else "one source"
    parts = Table(title=f"data of {experiment.name}: {draws}", title_justify="left", box=box.SIMPLE)
    for header in ("part", "store", "share", "training", "held out", "passes"):
        parts.add_column(header, justify="left" if header in ("part", "store") else "right", overflow="fold")
    for name, part in _parts(experiment, data).items():
        passes = "" if part["passes"] is None else f"{part['passes']:.3g}"
        numbers = (f"{part['share']:.4g}", f"{part['train']:,}", f"{part['held_out']:,}", passes)
        parts.add_row(name, part["store"], *numbers)
    yield parts
    columns = Table(title="columns", title_justify="left", box=box.SIMPLE)
    for header in ("column", "shape", "type"):
        columns.add_column(header)
    for name, column in data.train.columns.items():
        columns.add_row(name, str(column.shape).replace(str(ANY), "any"), column.dtype)
    yield columns
    if problems := _problems(data):
        left_out = Table(title="columns that the parts do not hold alike", title_justify="left", box=box.SIMPLE)
        left_out.add_column("column")
        left_out.add_column("reason", overflow="fold")
        for name, reason in problems.items():
            left_out.add_row(name, reason)
        yield left_out


def data_facts(experiment: Experiment, data: DataSplits) -> dict[str, Any]:
    """Return what the tables of an experiment's data show, in JSON's types."""
    return {
        "name": data.name,
        "fingerprint": data.fingerprint,
        "draw": data.mixture.draw if data.mixture else None,
        "parts": _parts(experiment, data),
        "columns": {
            name: {"shape": list(column.shape), "dtype": column.dtype} for name, column in data.train.columns.items()
        },
        "problems": dict(_problems(data)),
        "note": data.note,
    }


def _parts(experiment: Experiment, data: DataSplits) -> dict[str, dict[str, Any]]:
    kind: str = experiment.data.kind
    parts = data.mixture.parts if data.mixture else {kind: data}
    shares = data.mixture.shares if data.mixture else {kind: 1.0}
    steps = experiment.training.steps
    return {
        name: {
            "store": part.name,
            "fingerprint": part.fingerprint,
            "share": shares[name],
            "train": len(part.train),
            "held_out": len(part.held_out),
            "passes": steps and shares[name] * steps * experiment.batch.size / max(1, len(part.train)),
        }
        for name, part in parts.items()
    }


def _problems(data: DataSplits) -> Mapping[str, str]:
    return data.train.store.problems if isinstance(data.train.store, JoinedStore) else {}
