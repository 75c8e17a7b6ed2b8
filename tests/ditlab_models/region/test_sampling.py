"""Imputation: measured regions stay, masked ones come from the network, under either corruption."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from ditlab_models.contract import RealRows, SampleRequest
from ditlab_models.region.family import FAMILY
from ditlab_models.region.spec import BedMask, RandomMask, RegionObjectiveSpec, RegionSamplingSpec
from support.damage import refused
from support.models.draws import Answering, seeded
from support.models.small_networks import region_spec

CONSTANT = 0.4


def sampler(corruption="mask", **changes):
    return FAMILY.build_sampler(
        RegionSamplingSpec(**changes), region_spec(corruption=corruption), RegionObjectiveSpec()
    )


def constant():
    """A network that predicts one value everywhere."""
    return Answering(lambda x, *_: torch.full_like(x, CONSTANT))


def impute(made, rows, network=None, **options):
    """Draw four windows of the rows, by a constant network unless another is given."""
    conditions = made.conditions(4, SampleRequest(rows=rows))
    return made.sample(network or constant(), conditions, 4, seeded(), **options)


@pytest.fixture
def rows(windows):
    """The windows with coordinates: region i of window w spans [1000 i, 1000 i + 400) of chromosome
    w % 2 + 1.
    """
    start = np.broadcast_to(1000 * np.arange(12, dtype=np.int64), (4, 12)).copy()
    end = start + 400
    start[3, 9:] = end[3, 9:] = 0
    columns = {"chromosome": np.array(["chr1", "chr2", "chr1", "chr2"]), "start": start, "end": end}
    names = {"regions": [f"motif-{i}" for i in range(6)] + ["accessibility"]}
    return RealRows(
        {k: v.float() for k, v in windows.items() if k == "regions"}
        | {"present": windows["present"]},
        columns,
        names,
        noise=None,
    )


@pytest.fixture
def bed(tmp_path):
    """A mask by a BED file of this text."""

    def make(text):
        path = tmp_path / "ask.bed"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return BedMask(path=str(path))

    return make


@pytest.mark.parametrize(
    ("corruption", "solver"),
    [("mask", "predict"), ("ddpm", "predict"), ("ddpm", "ddpm"), ("ddpm", "ddim")],
)
def test_measured_regions_stay_and_masked_ones_are_the_networks(rows, corruption, solver):
    made = sampler(corruption, solver=solver, steps=7)
    network = constant()
    samples = impute(made, rows, network, trajectory=True)
    mask, x = samples.conditions["mask"], rows.batch["regions"]
    assert mask.any() and not mask[~rows.batch["present"]].any()
    assert torch.equal(samples.values[~mask], x[~mask])
    assert_close(samples.values[mask], torch.full_like(samples.values[mask], CONSTANT))
    for seen, *_ in network.calls:
        # the network always gets measured regions unchanged
        assert torch.equal(seen[~mask], x[~mask])
    calls = [int(t[0]) for _, _, t, *_ in network.calls]
    expected = {"predict": [0 if corruption == "mask" else 999]}.get(
        solver, [999, 832, 666, 500, 333, 166, 0]
    )
    assert calls == pytest.approx(expected, abs=1)
    assert samples.trajectory.shape == (len(calls) + 1, 4, 12, 7)
    assert samples.trajectory[0][mask].std().item() == pytest.approx(1, abs=0.2)
    assert_close(samples.trajectory[-1], samples.values)


@pytest.mark.parametrize("ratio", [0.2, 1.0])
def test_the_share_of_masked_regions(ratio):
    made = sampler(mask=RandomMask(ratio=ratio))
    batch = {"regions": torch.zeros(200, 12, 7), "present": torch.ones(200, 12, dtype=torch.bool)}
    mask = made.sample(constant(), batch, 200, seeded()).conditions["mask"]
    assert mask.double().mean().item() == pytest.approx(ratio, abs=0.04)


def test_a_bed_file_says_which_regions_are_imputed(rows, bed):
    asked = bed(
        "# mine\ntrack name=x\nchr1\t2399\t2400\tname\nchr1 5000 "
        "5001\nchr2\t9000\t99000\n\nchrX\t0\t10\n"
    )
    made = sampler(mask=asked)
    # chr2's only window without padding reaches 11,400; the other ends at 8,400
    assert made.select_rows(rows).tolist() == [True, True, True, False]
    mask = made.conditions(4, SampleRequest(rows=rows))["mask"]
    assert mask[0].nonzero().flatten().tolist() == mask[2].nonzero().flatten().tolist() == [2, 5]
    assert mask[1].nonzero().flatten().tolist() == [9, 10, 11]
    samples = impute(made, rows)
    assert torch.equal(samples.conditions["mask"], mask)


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ("chr1 400 1000", []),  # between region 0 and region 1
        ("chr1 399 1000", [0]),
        ("chr1 400 1001", [1]),
        ("chr1 0 100000", list(range(12))),
        ("chr1 0 9000\nchr1 100 200\nchr1 1100 1200", list(range(9))),  # the long one counts on
        ("\ufeffchr1 2000 2100", [2]),  # a byte order mark is no chromosome's
    ],
)
def test_intervals_touch_regions_half_open(rows, bed, intervals, expected):
    mask = sampler(mask=bed(intervals)).conditions(4, SampleRequest(rows=rows))["mask"]
    assert mask[0].nonzero().flatten().tolist() == expected


def test_intervals_that_meet_no_region_are_counted(rows, bed):
    """Intervals of chr1: one in two windows, one in a gap, one behind; padding at 0 and other
    chromosomes have none.
    """
    asked = bed("chr1 2000 2100\nchr1 400 1000\nchr1 99000 99100\nchr2 8000 9001\nchrX 0 10\n")
    assert sampler(mask=asked).note(rows) == (
        f"sampling.mask.path={asked.path}: 3 of 5 intervals meet no region of these windows, and "
        "nothing is imputed for them"
    )
    said = sampler(mask=bed("chrX 0 10\nchrY 0 10\n")).note(rows)
    assert "2 of 2 intervals meet no region" in said
    assert said.endswith("(intervals of chrX, chrY; windows of chr1, chr2)")
    assert sampler(mask=bed("chr1 2000 2100\n")).note(rows) == ""
    assert sampler().note(rows) == ""


def test_rows_without_coordinates(rows, bed):
    bare = replace(rows, columns={})
    made = sampler()
    samples = impute(made, bare)
    assert list(made.table(samples, bare))[:3] == ["window", "masked", "motif-0"]
    made = sampler(mask=bed("chr1 2000 2100\n"))
    message = r"kind=bed finds regions .* these rows have no chromosome and no start"
    with refused(message, ValueError):
        made.select_rows(bare)


def test_figures_of_a_bed_masks_run_are_masked_by_chance(windows, tmp_path):
    spec = region_spec()
    made = FAMILY.build_sampler(
        RegionSamplingSpec(mask=BedMask(path=str(tmp_path / "gone.bed"))),
        spec,
        RegionObjectiveSpec(),
    )
    batch = {"regions": windows["regions"].float(), "present": windows["present"]}
    objective = FAMILY.build_objective(RegionObjectiveSpec(), spec)
    drawn = objective.figures(constant(), batch, made, seeded(), ["imputation"])
    ((kind, figure),) = drawn
    assert kind == "imputation" and np.isnan(figure.panels[1].values).any()


def test_the_picture_says_where_a_window_has_one_prediction(rows):
    for changes, title in (
        ({}, "model.positions=none: one prediction for all masked regions of a window"),
        ({"positions": "sinusoidal"}, ""),
        ({"corruption": "ddpm"}, ""),
    ):
        made = FAMILY.build_sampler(
            RegionSamplingSpec(), region_spec(**changes), RegionObjectiveSpec()
        )
        samples = impute(made, rows)
        assert made.show(samples).title == title


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("chr1\t5\n", r"line 1 is no BED interval \('chr1\\t5'\)"),
        ("chr1 1 2\nchr1 9 3\n", r"line 2 is no BED interval"),
        ("chr1 a b\n", r"line 1 is no BED interval"),
        (
            f"chr1 1 2\nchr1 5 {2**63}\n",
            r"line 2 is no BED interval .*at most 9,223,372,036,854,775,807",
        ),
        ("# nothing\n", r"holds no interval"),
        (None, r"cannot be read \(No such file or directory\)"),
        (b"\xff\xfe\x00", r"cannot be read \(it is no text; unpack it first\)"),
    ],
)
def test_bed_files_that_are_none(rows, bed, content, message):
    mask = BedMask(path="/nowhere/ask.bed") if content is None else bed(content)
    with refused(message, ValueError):
        sampler(mask=mask).conditions(1, SampleRequest(rows=rows))


def test_the_table_has_a_row_a_region(rows):
    made = sampler()
    samples = impute(made, rows)
    table = made.table(samples, rows)
    assert {len(column) for column in table.values()} == {4 * 12 - 3}
    assert list(table)[:5] == ["window", "chromosome", "start", "end", "masked"]
    assert list(table)[5:12] == [*(f"motif-{i}" for i in range(6)), "accessibility"]
    assert list(table)[12] == "measured:motif-0"
    masked = table["masked"]
    assert np.allclose(table["accessibility"][masked], CONSTANT)
    assert np.array_equal(table["motif-3"][~masked], table["measured:motif-3"][~masked])
    last = np.flatnonzero(table["window"] == 3)
    assert (
        len(last) == 9
        and table["start"][last[-1]] == 8000
        and table["chromosome"][last[0]] == "chr2"
    )


def test_features_named_as_other_columns_are_kept_apart(rows):
    names = ["start", "masked", "A", "measured:A", "imputed:start", "window", "accessibility"]
    made = sampler()
    samples = impute(made, rows)
    table = made.table(samples, replace(rows, names={"regions": names}))
    present = rows.batch["present"].numpy()
    assert (
        np.array_equal(table["start"], rows.columns["start"][present])
        and table["masked"].dtype == bool
    )
    values = samples.values.numpy()[present]
    for i, name in enumerate(
        (
            "imputed:start",
            "imputed:masked",
            "A",
            "imputed:measured:A",
            "imputed:imputed:start",
            "imputed:window",
            "accessibility",
        )
    ):
        assert np.array_equal(table[name], values[:, i])
    assert np.array_equal(table["measured:A"], rows.batch["regions"].numpy()[present][:, 2])
    assert len(table) == 5 + 2 * 7


def test_the_largest_accessibility_of_a_window_stands_beside_its_regions(rows):
    largest = np.array([2.0, 3.0, 5.0, 7.0])
    given = replace(rows, columns={**rows.columns, "largest_accessibility": largest})
    made = sampler()
    samples = impute(made, given)
    table = made.table(samples, given)
    assert np.array_equal(table["largest_accessibility"], largest[table["window"]])


def test_the_picture_shows_measured_masked_and_imputed_in_the_same_colours(rows):
    made = sampler()
    samples = impute(made, rows)
    figure = made.show(samples)
    assert len(figure.panels) == 12 and figure.columns == 3
    measured, seen, imputed = figure.panels[9:]
    assert measured.values.shape == (7, 9)  # padding is left out
    mask = samples.conditions["mask"][3, :9].numpy()
    assert np.isnan(seen.values[:, mask]).all() and not np.isnan(seen.values[:, ~mask]).any()
    assert measured.limits == seen.limits == imputed.limits
