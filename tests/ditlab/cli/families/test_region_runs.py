"""`evaluate` and `sample` on a run of a family that has an evaluator, and that completes real
rows.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors.torch import load_file

import ditlab
from ditlab.data.stores.manifest import Column, Source
from support.command import run_inside
from support.damage import refused
from support.datasets.writing import StoreWriter
from support.journals import read_records
from support.opened import file_states

REGIONS, NAMES = 10, ("GATA", "CTCF", "accessibility")
CHROMOSOMES = ("chr1", "chr2", "chr3")
SPEC = """\
name: regions
model:
  {{family: region, num_features: 3, num_regions: 10, width: 16, depth: 1, num_heads: 2, time_width: 8,
    positions: sinusoidal}}
data: {{kind: arrow, path: {path}, hold_out: {hold_out}}}
batch: {{size: 16}}
training: {{steps: 4}}
checkpoint: {{every: 4}}
evaluation: {{every: 4, samples: 2, limit: 8}}
tracking: {{system_metrics: false}}
"""


def write_store(
    folder,
    names=NAMES,
    windows=60,
    divisors=(),
):
    """Windows of ten regions of 300 base pairs, every fifth with three of padding; as many of every
    chromosome.
    """
    draws = np.random.default_rng(0)
    present = np.ones((windows, REGIONS), bool)
    present[::5, 7:] = False
    start = np.where(present, 1000 * np.arange(REGIONS) + 100_000 * np.arange(windows)[:, None], 0)
    columns = {
        "regions": Column(
            dtype="float32", shape=(REGIONS, len(names)), names=names, divisors=divisors
        ),
        "present": Column(dtype="bool", shape=(REGIONS,)),
        "chromosome": Column(dtype="int64", num_classes=3, names=CHROMOSOMES),
        "start": Column(dtype="int64", shape=(REGIONS,)),
        "end": Column(dtype="int64", shape=(REGIONS,)),
    }
    rows = {
        "regions": draws.random((windows, REGIONS, 3), dtype=np.float32) * present[..., None],
        "present": present,
        "chromosome": np.arange(windows) * 3 // windows,
        "start": start,
        "end": np.where(present, start + 300, 0),
    }
    with StoreWriter(folder, columns, name="windows", source=Source(kind="test")) as writer:
        writer.append(rows)
    return folder


@dataclass(frozen=True)
class Trained:
    """A folder with a store and a run on it, chr3 held out."""

    folder: Path

    @property
    def home(self):
        return self.folder / "home"

    @property
    def media(self):
        (media,) = self.home.glob("train/*/media")
        return media

    def command(self, *words):
        return run_inside(*words, home=self.home, cwd=self.folder)

    def sample(self, *words):
        return self.command("sample", "regions", *words, "--json").ok()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    made = Trained(tmp_path_factory.mktemp("regions"))
    store = write_store(made.folder / "store")
    spec = made.folder / "regions.yaml"
    spec.write_text(SPEC.format(path=store, hold_out="{column: chromosome, values: [chr3]}"))
    made.command("train", spec, "--local").ok()
    return made


@pytest.fixture(scope="module")
def completed(trained):
    """Two held-out rows, completed as `ditlab sample` does by default, and its files."""
    return trained.sample("--num", "2", "--out", trained.folder / "completed")


def imputed(said):
    (file,) = [file for file in said.json["files"] if file.endswith("imputed.parquet")]
    table = pq.read_table(file)
    return {name: table[name].to_numpy() for name in table.column_names}


def test_a_quick_look_adds_nothing_to_the_run(trained):
    """Before the whole evaluation below, as of two values for one step the first one stays."""

    journal = trained.media.with_name("journal.jsonl")
    before = (file_states(trained.media), journal.read_bytes())
    said = trained.command("evaluate", "regions", "--rows", "5", "--json").ok()
    assert said.json["files"] == [] and "5 samples" in said.err
    assert (file_states(trained.media), journal.read_bytes()) == before
    assert sum(said.json["tables"]["by_motif"]["entries"][:3]) <= 5 * REGIONS * 3


def test_evaluate_measures_against_baselines_and_keeps_it(trained):
    said = trained.command("evaluate", "regions", "--json").ok()
    metrics, tables = said.json["metrics"], said.json["tables"]
    names = {"held_out/masked", "assessed/r2/r50", "assessed/baseline/ridge/r2_within/r15"}
    assert metrics.keys() >= names
    assert all(math.isfinite(value) for value in metrics.values())
    assert tables["by_motif"]["motif"][:3] == list(NAMES)
    assert tables["by_chromosome"]["chromosome"] == ["chr3"] * 4
    for word in ("motif_mean", "masked 15%", f"{metrics['assessed/r2/r50']:.4f}"):
        assert word in said.err
    assert "GATA" not in said.err  # that table is long in earnest
    assert said.json["left_out"] == {"chromosome": ["chr3"]}
    assert "left out of training: chromosome chr3" in said.err
    assert "assessed/pearson/r50_low" in metrics and "pearson_low" not in said.err
    for name in ("r2", "pearson", "mse"):  # of the same masks
        held_out = pytest.approx(metrics[f"held_out/{name}"], rel=1e-4, abs=1e-6)
        assert metrics[f"assessed/{name}/r50"] == held_out

    kept = {Path(file).name for file in said.json["files"]}
    assert kept == {path.name for path in (trained.media / "assessment").iterdir()}
    assert {"r2_by_mask_ratio.png", "by_ratio.parquet"} <= kept
    table = pq.read_table(trained.media / "assessment" / "by_ratio.parquet").to_pydict()
    assert table == tables["by_ratio"]

    records = read_records(trained.media.parent / "journal.jsonl")
    logged = [each["values"] for each in records if each["kind"] == "metrics"]
    assert logged[-1]["assessed/r2/r50"] == metrics["assessed/r2/r50"]
    assessment = [each for each in records if each.get("artifact_path") == "assessment"]
    assert {Path(each["path"]).name for each in assessment} == kept


def test_sample_completes_held_out_rows(trained, completed):
    table = imputed(completed)
    files = {Path(file).name: file for file in completed.json["files"]}
    assert files.keys() == {"samples.png", "samples.safetensors", "imputed.parquet"}
    places = ["window", "chromosome", "start", "end", "masked"]
    assert [*table] == [*places, *NAMES, *(f"measured:{name}" for name in NAMES)]
    assert set(table["chromosome"]) == {"chr3"} and set(table["window"]) == set(range(2))
    assert 0.2 < table["masked"].mean() < 0.8 and (table["end"] - table["start"] == 300).all()
    is_measured = table["CTCF"] == table["measured:CTCF"]
    assert (is_measured == ~table["masked"]).all()
    numbers = load_file(files["samples.safetensors"])
    assert numbers["values"].shape == (2, REGIONS, 3)
    assert int(numbers["present"].sum()) == len(table["window"])
    (drawn,) = trained.media.glob("samples-00000004.png")
    with Image.open(files["samples.png"]) as one, Image.open(drawn) as two:
        assert one.tobytes() == two.tobytes(), "those of the evaluation"


def test_what_was_completed_is_said_before_the_files(blank_pictures, trained, tmp_path):
    said = trained.command("sample", "regions", "--num", "2", "--out", tmp_path)
    rows, *files = said.out.splitlines()
    assert re.fullmatch(r"\d+ completed rows of window, chromosome, .*", rows) and len(rows) <= 80
    assert files[0] == str(tmp_path / "samples.png")


def test_more_rows_than_there_are(blank_pictures, trained, tmp_path):
    said = trained.sample("--num", "1000", "--out", tmp_path)
    assert set(imputed(said)["window"]) == set(range(20))
    assert "--num 1000" in said.err and "20 rows" in said.err


def test_rows_of_other_data(blank_pictures, trained):
    train = imputed(trained.sample("--data", "train"))
    assert set(train["chromosome"]) == {"chr1", "chr2"}
    write_store(trained.home / "stores" / "other", windows=6)
    other = imputed(trained.sample("--data", "other"))
    assert set(other["chromosome"]) == set(CHROMOSOMES) and set(other["window"]) == set(range(6))


def test_a_bed_file_gets_all_its_windows_unless_a_number_is_given(
    blank_pictures, trained, tmp_path
):
    """Also more of them than the default of 64."""
    store, bed = write_store(tmp_path / "many", windows=90), tmp_path / "all.bed"
    bed.write_text("".join(f"{name}\t0\t100000000\n" for name in CHROMOSOMES) + "chrX\t5\t6\n")
    choice = ("--data", store, "--set", f"sampling.mask={{kind: bed, path: {bed}}}")
    said = trained.sample(*choice)
    assert set(imputed(said)["window"]) == set(range(90)) and "--num" not in said.err
    assert f"sampling.mask.path={bed}: 1 of 4 intervals meet no region of these windows" in said.err
    said = trained.sample(*choice, "--num", "70")
    assert set(imputed(said)["window"]) == set(range(70))
    note = f"--num 70: 70 of 90 rows to complete in --data {store}; leave --num out for all."
    assert note in said.err
    by_chance = trained.sample("--data", store)
    assert set(imputed(by_chance)["window"]) == set(range(64)) and "--num" not in by_chance.err


def test_the_table_carries_the_divisors_of_its_features(blank_pictures, trained, tmp_path):
    store = write_store(tmp_path / "divided", divisors=(2.0, 0.5, 1.0))
    trained.sample("--data", store, "--num", "1", "--out", tmp_path / "a")
    facts = json.loads(pq.read_schema(tmp_path / "a" / "imputed.parquet").metadata[b"ditlab"])
    assert facts == {"divisors": {"regions": {"GATA": 2.0, "CTCF": 0.5, "accessibility": 1.0}}}


def test_features_in_another_order_are_refused(trained, tmp_path):
    swapped = write_store(tmp_path / "swapped", names=("CTCF", "GATA", "accessibility"))
    trained.command("sample", "regions", "--data", swapped).refused(
        "has 'CTCF' as entry 1 of regions", "have 'GATA'; import it"
    )


def test_a_schedule_without_noise_is_refused_before_anything_starts(trained):
    """An error of building is one sentence in the commands that build."""
    spec = ("--set", "model.corruption=ddpm", "--set", "objective.noise.beta_end=0.001")
    for command in ("params", "train"):
        said = trained.command(command, trained.folder / "regions.yaml", *spec)
        said.refused("objective.noise.beta_end=0.001 with objective.noise")


def test_families_that_complete_nothing_take_no_rows(with_run):
    with_run("sample", "small", "--data", "train").refused(
        "--data train: this run's family draws from noise alone"
    )


def test_runs_give_completed_rows_and_tables_in_python(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(trained.home))
    run = ditlab.open_run("regions")
    drawn = run.sample(2)
    assert set(drawn.table["window"]) == {0, 1} and drawn.images == []
    found = run.evaluate(rows=5)
    assert found.tables["r2"]["predictor"][0] == "model" and "r2_by_motif" in found.plots
    assert found.files == []
    model = ditlab.load_export(run.export(tmp_path / "export").folder, device="cpu")
    with refused("an export has none; use the run"):
        model.sample(2)
