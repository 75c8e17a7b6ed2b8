"""The Python interface: specs, runs, metrics, samples, evaluation, comparison and exports, without
a word printed.
"""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import ditlab
from support.damage import refused
from support.homes import settled
from support.python_process import run_python


@pytest.fixture
def small(finished, monkeypatch):
    """The shared run; read it only."""
    monkeypatch.setenv("DITLAB_HOME", str(finished.home))
    return ditlab.open_run("small")


@pytest.fixture
def mine(finished, tmp_path, monkeypatch):
    """A copy of the run, to be written to."""
    home = tmp_path / "home"
    ignored = shutil.ignore_patterns("mlflow.db*", "caches")
    settled(shutil.copytree(finished.home, home, ignore=ignored))
    monkeypatch.setenv("DITLAB_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return ditlab.open_run("small")


@pytest.fixture(autouse=True)
def nothing_is_printed(capfd):
    yield
    assert capfd.readouterr() == ("", "")


def test_importing_costs_nothing_heavy():
    code = (
        "import sys, ditlab\nspec = "
        "ditlab.load('experiments/digits/dit.yaml').replace('optimizer.lr', 3e-4)\n"
        "ditlab.find_runs(), ditlab.UserError, dir(ditlab)\nprint(spec.optimizer.lr, [name for "
        "name in ('torch', 'ray', 'mlflow', 'deepspeed') if name in sys.modules])"
    )
    root = Path(__file__).parents[3]
    assert run_python("-c", code, cwd=root).stdout == "0.0003 []\n"


def test_every_name_exists():
    names = dir(ditlab)
    assert all(hasattr(ditlab, name) for name in names) and set(names) > set(ditlab.__all__)
    # a module of an exported name would take its place once it is imported
    folder = Path(ditlab.__file__).parent
    assert not {path.stem for path in folder.iterdir()} & set(names)
    with pytest.raises(AttributeError, match="module 'ditlab' has no attribute 'trian'"):
        ditlab.trian  # noqa: B018


def test_specs_are_loaded_changed_and_checked(spec):
    found = ditlab.load(spec, overrides=["model.depth=2"])
    assert (found.name, found.model.depth) == ("small", 2)
    changed = found.replace("optimizer.lr", 3e-4)
    assert (changed.optimizer.lr, found.optimizer.lr) == (3e-4, 1e-4)
    assert changed == ditlab.load(str(spec), ["model.depth=2", "optimizer.lr=3e-4"])
    assert found.replace("optimizer.betas", (0.8, 0.9)).optimizer.betas == (0.8, 0.9)
    assert found.replace("training.ema", None).training.ema is None
    assert found.replace("training", changed.training) == found
    schedule = {"kind": "warmup_cosine", "warmup": 9}
    both = found.replace_all({"schedule": schedule, "training.steps": 10})
    assert (both.schedule.warmup, both.training.steps) == (9, 10)
    with refused(r"^model\.dpeth=3: .*; did you mean 'depth'\?$"):
        found.replace("model.dpeth", 3)


def test_runs_are_found(small, finished):
    assert (small.id, small.name, small.step) == (finished.run_id, "small", 4)
    assert ditlab.open_run(small.id[:5]).id == small.id and small.refresh().record == small.record
    (run,) = ditlab.find_runs(name="small", family="dit", status="finished")
    assert run.id == small.id
    assert ditlab.find_runs(status="failed") == ditlab.find_runs(name="nope") == []
    assert small.spec == ditlab.load(finished.spec)


def test_remarks_reach_the_caller(mine, capfd):
    shutil.copytree(mine.folder.path, mine.folder.path.with_name("0" * 8))
    heard = []
    ditlab.open_run("small", warn=heard.append)
    assert len(heard) == 1 and heard[0].startswith("2 runs are named 'small'; taking the newest")


def test_metrics_are_a_table(small):
    table = small.metrics()
    assert table.column_names[:2] == ["step", "time"]
    assert table["step"].to_pylist() == list(range(5))
    assert table["train/loss"].to_pylist()[0] is None
    assert table["eval/velocity"].to_pylist()[1] is None
    assert table.schema.field("time").type == pa.timestamp("ms", tz="UTC")
    assert small.metrics("train/loss")["step"].to_pylist() == [1, 2, 3, 4]
    few = small.metrics("eval/velocity")
    assert few.column_names[2:] == ["eval/velocity"] and few["step"].to_pylist() == [0, 2, 4]
    with refused(r"has no metric 'train/los'; did you mean 'train/loss'\?"):
        small.metrics("train/los")


def test_curves_are_plots(small, tmp_path):
    for plot in (small.plot(), small.plot("train/loss", "eval/velocity")):
        png, about = plot._repr_png_()
        assert png.startswith(b"\x89PNG") and about == {"alt": plot.figure.alternative_text}
    file = plot.save(tmp_path / "curves.png")
    assert file == tmp_path / "curves.png" and file.stat().st_size > 0


def test_samples_are_tensors_and_pictures(small, with_run, tmp_path):
    drawn = small.sample(3, seed=7, trajectory=True)
    assert drawn.values.shape == (3, 1, 8, 8) and len(drawn) == 3 and drawn.step == 4
    assert drawn.trajectory.shape == (5, 3, 1, 8, 8)
    assert drawn.conditions == {} and drawn.texts == []
    assert [image.size for image in drawn.images] == [(8, 8)] * 3
    pixels = np.asarray(drawn.images[1], dtype=np.float64) / 255
    np.testing.assert_allclose(pixels, (drawn.values[1, 0].clamp(-1, 1) + 1).numpy() / 2, atol=0.01)
    assert drawn._repr_png_()[1]["alt"].startswith("3 samples")
    assert len(drawn.animation.figure.frames) >= 5
    files = drawn.save(tmp_path / "python")
    words = ("--num", "3", "--seed", "7", "--trajectory", "--out", tmp_path / "command")
    written = [Path(line) for line in with_run("sample", "small", *words).out.splitlines()]
    assert [file.name for file in files] == [file.name for file in written]
    for file, other in zip(files, written, strict=True):
        assert file.read_bytes() == other.read_bytes()
    assert not torch.equal(small.sample(3, seed=8).values, drawn.values)
    with pytest.raises(ValueError, match="trajectory=True"):
        small.sample(1).animation  # noqa: B018


def test_evaluation_is_added_to_the_run_once(mine):
    found = mine.evaluate()
    assert found.metrics["held_out/velocity"] > 0 and found.tables == {} and found.files == []
    assert mine.evaluate().metrics == found.metrics
    assert mine.evaluate(rows=5).num_samples == 5
    table = mine.metrics("held_out/velocity")
    assert table["held_out/velocity"].to_pylist() == [found.metrics["held_out/velocity"]]
    with refused("changes samples alone"):
        mine.evaluate(overrides=["sampling.steps=2"])


def test_figures_by_kind(small, tmp_path):
    figures = small.figures()
    assert figures.draw("schedule").image.width > 100
    assert figures.save_formats("loss", tmp_path) == [tmp_path / "loss.png"]


def test_an_export_is_a_network_ready_to_use(small, tmp_path):
    written = small.export(tmp_path / "export")
    assert {file.name for file in written.files} == {"weights.safetensors", "spec.yaml"}
    model = ditlab.load_export(written.folder, device="cpu")
    assert model.spec.model == small.spec.model and model.step == 4 and not model.network.training
    x, t = torch.randn(2, 1, 8, 8), torch.tensor([0.2, 0.8])
    with torch.no_grad():
        assert model.network(x, t).shape == x.shape
    assert torch.equal(model.sample(3, seed=7).values, small.sample(3, seed=7).values)
    assert model.sampler.takes_rows == "none" and model.text is None
    with refused(r"holds no spec\.yaml, so it is no export"):
        ditlab.load_export(tmp_path)


@pytest.mark.slow
def test_samples_are_drawn_with_compiled_blocks_where_that_is_asked_for(small, tmp_path):
    model = ditlab.load_export(small.export(tmp_path / "export").folder, device="cpu")
    drawn = small.sample(3, seed=7)
    for compiled in (small.sample(3, seed=7, compile=True), model.sample(3, seed=7, compile=True)):
        torch.testing.assert_close(compiled.values, drawn.values, rtol=1e-4, atol=1e-4)
        assert compiled.folder.name == f"{drawn.folder.name}-compiled"
    assert torch.equal(model.sample(3, seed=7, compile=False).values, drawn.values)


def test_samples_begin_with_given_noise(small, tmp_path):
    """Samples of a run and of its export are equal, however many are drawn at once."""
    model = ditlab.load_export(small.export(tmp_path / "export").folder, device="cpu")
    drawn = small.sample(3, seed=7, trajectory=True)
    noise = drawn.samples.trajectory[0]
    for again in (
        small.sample(noise=noise),
        model.sample(3, noise=noise),
        model.sample(noise=noise, batch=2),
    ):
        torch.testing.assert_close(again.values, drawn.values)
        assert len(again) == 3 and again.folder.name != drawn.folder.name
    with refused(r"noise must be a torch\.Tensor"):
        small.sample(3, noise=noise.numpy())
