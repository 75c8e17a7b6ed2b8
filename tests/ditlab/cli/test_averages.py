"""`evaluate`, `sample`, `export` with `--ema`, and what `plan`, `runs show` and `runs rm` say of
kept averages.
"""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import ditlab as package
from support.command import run_inside
from support.damaged.home import copied_home
from support.trainings.averaged import keep_averages

LENGTHS = ("0.05", "0.1", "0.25")


@pytest.fixture(scope="module")
def averaged_home(finished, tmp_path_factory):
    """A home whose run keeps averages. Read it only."""
    home = copied_home(finished.home, tmp_path_factory.mktemp("averages") / "home")
    keep_averages(home.run(finished.run_id).checkpoints)
    return home


@pytest.fixture
def ema(averaged_home, monkeypatch):
    """`ema(*arguments)` in that home."""
    monkeypatch.setenv("DITLAB_HOME", str(averaged_home.root))
    return lambda *arguments: run_inside(*arguments, home=averaged_home.root)


def test_metrics_by_length(averaged_home, finished, ema):
    """Weights that are at rest are rebuilt exactly."""
    journal = averaged_home.run(finished.run_id).journal
    before = journal.read_bytes()
    profiles = [*LENGTHS, "decay=0.9"]
    said = ema("evaluate", "small", "--rows", "32", "--ema", ",".join(profiles), "--json").ok()
    assert journal.read_bytes() == before and said.json["run_id"] == finished.run_id
    assert [each["profile"] for each in said.json["averages"]] == profiles
    first, *rest = (each["metrics"] for each in said.json["averages"])
    assert {"eval/velocity", "eval/direction"} <= first.keys()
    assert all(each == pytest.approx(first, rel=1e-4) for each in rest)
    assert said.err.count("eval/velocity_t0") == 1 and "it is approximate" in said.err


def test_one_average_for_samples_and_exports(averaged_home, finished, ema, tmp_path):
    ema("export", "small", "--raw", "--out", tmp_path / "own").ok()
    said = ema("export", "small", "--ema", "0.15", "--out", tmp_path / "rebuilt").ok()
    sentence = "average 0.15 is rebuilt from 3 snapshots and the checkpoint of step 4, with a profile error"
    assert sentence in said.err
    places = [tmp_path / name / "weights.safetensors" for name in ("own", "rebuilt")]
    torch.testing.assert_close(*map(load_file, places), rtol=1e-5, atol=1e-6)
    with safe_open(places[1], "pt") as file:
        assert file.metadata()["average"] == "0.15"
    ema("sample", "small", "--num", "2", "--ema", "0.15", "--out", tmp_path / "drawn").ok()
    drawn = load_file(tmp_path / "drawn" / "samples.safetensors")["values"]
    trained = package.load_export(tmp_path / "own", device="cpu").sample(2).values
    torch.testing.assert_close(drawn, trained, rtol=1e-3, atol=1e-3)
    found = package.evaluate_averages("small", 0.1, rows=32)
    assert list(found) == ["0.1"] and "eval/velocity" in found["0.1"].metrics


def test_bad_input_is_one_sentence(ema, with_run, tmp_path):
    for text in ("0.3", "", "inf", "0.1,abc", "decay=1"):
        wrong = text.split(",")[-1]
        ema("evaluate", "small", "--ema", text).refused(
            f"--ema {wrong!r} is no average that can be rebuilt; name a relative length such as 0.1"
        )
    ema("sample", "small", "--ema", "0.1,0.2").refused(
        "--ema 0.1,0.2 names 2 averages, and one is used here; name one."
    )
    both = ("--ema", "0.1", "--raw", "--out", tmp_path)
    ema("export", "small", *both).refused("--raw and --ema 0.1 exclude each other")
    with_run("evaluate", "small", "--ema", "0.1").refused(
        "the checkpoint of step 4 keeps no averages", "set training.averages"
    )


def test_snapshots_are_counted_and_deleted_with_their_run(averaged_home, finished, tmp_path):
    home = copied_home(averaged_home.root, tmp_path / "home")
    folder = home.run(finished.run_id).checkpoints / "averages"
    taken = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    shown = run_inside("runs", "show", "small", "--json", home=home.root).json["bytes"]
    assert shown["snapshots of averages"] == taken and shown["total"] > taken + shown["checkpoints"]
    said = run_inside("runs", "show", "small", home=home.root).out
    assert "snapshots of averages" in " ".join(said.split())
    assert run_inside("runs", "rm", "small", "--yes", home=home.root).code == 0
    assert not folder.exists()


@pytest.mark.slow
def test_a_plan_counts_memory_and_disk(finished):
    changes = ("training.averages={}", "training.steps=2000", "engine.zero.stage=0")
    averages = [word for change in changes for word in ("--set", change)]
    said = run_inside("plan", finished.spec, *averages, "--json", home=finished.home)
    found = said.json
    # master, two moments, the moving average, and two averages of other lengths
    one = 4 * found["parameters"]
    assert (found["snapshots"], found["snapshot_bytes"]) == (33, 2 * one)
    assert found["checkpoint_bytes"] == 6 * one
    assert found["own"]["update"]["average"] == 3 * one
    assert found["own"]["checkpoint_copy_bytes"] == 8 * one
    assert "snapshots of averages 33 of" in " ".join(said.err.split())
