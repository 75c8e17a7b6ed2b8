"""Whole classes kept out of training."""

import re

import numpy as np
import pytest

from ditlab.data.splits import open_data
from ditlab.data.stores.manifest import Column
from ditlab.errors import UserError
from ditlab.spec.data import ArrowData
from ditlab.spec.files import build_experiment
from support.damage import refused
from support.datasets.writing import written

CHROMOSOMES = np.array([0, 0, 2, 1, 1, 2, 0, 2, 2, 0] * 30)


@pytest.fixture
def path(tmp_path):
    """300 rows: 120 of chr1, 60 of chr9, 120 of chr10, none of chrX; `bin` is the same without
    names.
    """
    columns = {
        "chromosome": Column(dtype="int64", num_classes=4, names=("chr1", "chr9", "chr10", "chrX")),
        "bin": Column(dtype="int64", num_classes=4),
        "labels": Column(dtype="int64", shape=(2,), num_classes=5),
    }
    batch = {
        "chromosome": CHROMOSOMES,
        "bin": CHROMOSOMES,
        "labels": np.zeros((300, 2), np.int64),
    }
    return written(tmp_path / "s", columns, batch, rows_per_shard=70).path


def opened(path, home, column, *values):
    hold_out = {"column": column, "values": list(values)}
    return open_data(ArrowData(path=str(path), hold_out=hold_out), home)


@pytest.mark.parametrize(
    ("column", "values"), [("chromosome", ("chr9", "chr10")), ("bin", (2, 1, 2))]
)
def test_all_rows_of_a_class_are_held_out_and_no_other(path, home, column, values):
    splits = opened(path, home, column, *values)
    assert splits.train.rows.tolist() == np.flatnonzero(CHROMOSOMES == 0).tolist()
    assert sorted(splits.held_out.rows) == np.flatnonzero(CHROMOSOMES > 0).tolist()
    assert splits.note == ""


def test_held_out_rows_are_shuffled_alike_every_time(path, home):
    rows = opened(path, home, "chromosome", "chr9", "chr10").held_out.rows
    assert rows.tolist() != sorted(rows)
    assert set(CHROMOSOMES[rows[:20]]) == {1, 2}, "the first few are as good a sample as all"
    assert np.array_equal(rows, opened(path, home, "chromosome", "chr10", "chr9").held_out.rows)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "chromosme",
            ("chr1",),
            r"column=chromosme is no column of class indices in .*; it holds chromosome, bin\.",
        ),
        ("labels", (1,), r"column=labels is no column of class indices"),
        (
            "chromosome",
            ("chr11",),
            r"values=chr11 is no class of chromosome in .*; did you mean 'chr1",
        ),
        ("chromosome", (1,), r"values=1 is no class of chromosome"),
        ("bin", (4,), r"values=4 is no class of bin in .*; known: 0 to 3"),
        (
            "chromosome",
            ("chrX",),
            r"values=chrX holds no row out; chromosome has rows of chr1, chr9, chr10 in",
        ),
        (
            "chromosome",
            ("chr1", "chr9", "chr10"),
            r"values=chr1, chr9, chr10 holds out every row, so nothing is left",
        ),
    ],
)
def test_classes_that_cannot_be_held_out_are_named(path, home, column, values, message):
    with refused(r"data\.hold_out\." + message):
        opened(path, home, column, *values)


@pytest.mark.parametrize(
    ("hold_out", "message"),
    [
        ({"column": "c", "values": []}, "data.hold_out.values=[]: names no class"),
        ({"colum": "c", "values": ["a"]}, "data.hold_out.column is missing"),
        ("chr1", "data.hold_out='chr1' must be a number"),
        (0.7, "data.hold_out=0.7 must be at most 0.5"),
    ],
)
def test_specs_of_hold_outs_are_checked(hold_out, message):
    spec = {"name": "x", "model": {"family": "dit"}, "training": {"steps": 1}, "batch": {"size": 1}}
    data = {"kind": "arrow", "path": "p", "hold_out": hold_out}
    with pytest.raises(UserError, match=re.escape(message)):
        build_experiment({**spec, "data": data}, "spec")
