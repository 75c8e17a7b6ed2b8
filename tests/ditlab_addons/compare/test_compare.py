"""`compare` on two runs that have finished, and on parts of runs that have not."""

import json
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from ditlab.analysis.opened_run import SavedRun
from ditlab.home import Home
from ditlab_addons.compare.functions import draw, open_groups
from ditlab_models.figures import Figure, Text
from support.command import run_inside
from support.homes import settled
from support.journals import read_records

SECOND = """\
extends: small.yaml
name: second
model: {family: unet, image_size: 8, width: 8, time_width: 8}
"""
ALL = ("eval/velocity", "train/loss")


@pytest.fixture(scope="module")
def both(finished, tmp_path_factory):
    """A home with a DiT, `small`, and a U-Net, `second`. Read it only; `mine` is a copy."""
    folder = tmp_path_factory.mktemp("both")
    settled(shutil.copytree(finished.home, folder / "home"))
    shutil.copy(finished.spec, folder / "small.yaml")
    (folder / "second.yaml").write_text(SECOND)
    home = folder / "home"
    run_inside("train", folder / "second.yaml", "--local", home=home, cwd=folder).ok()
    return home


def copied(home, place):
    shutil.copytree(home, place, ignore=shutil.ignore_patterns("mlflow.db*", "caches"))
    settled(place)
    return place


@pytest.fixture
def mine(both, tmp_path, monkeypatch):
    """A copy of the home, to be written to."""
    home = copied(both, tmp_path / "mine")
    monkeypatch.setenv("DITLAB_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture(scope="module")
def compared(both, tmp_path_factory):
    """Both runs compared with all there is. Read it only."""
    folder = tmp_path_factory.mktemp("compared")
    home = copied(both, folder / "home")
    said = run_inside("compare", "small", "second", "--json", home=home, cwd=folder).ok()
    return SimpleNamespace(home=home, said=said)


@pytest.fixture
def compare(mine, cli):
    """`ditlab compare ...`"""
    return partial(cli, "compare")


def folder_of(home, name):
    (found,) = [
        path.parent
        for path in home.glob("train/*/run.json")
        if json.loads(path.read_text())["name"] == name
    ]
    return found


def another(home, name, **record):
    """A copy of the run `small` under a name of its own."""
    folder = home / "train" / name.encode().hex()[:8].ljust(8, "0")
    shutil.copytree(folder_of(home, "small"), folder)
    values = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**values, "name": name, **record}))
    return folder


def page(said):
    (file,) = [file for file in said.ok().json["files"] if file.endswith(".md")]
    return Path(file).read_text()


@pytest.fixture
def without_curves(monkeypatch):
    """Draw a word in place of the curves, in tests of the page's text: drawing them takes the
    longest.
    """
    monkeypatch.setattr(
        "ditlab_addons.compare.page.curves_figure", lambda *_: Figure([Text(["curves"])])
    )


def test_two_runs_become_a_page(compared):
    said = compared.said
    assert said.out.count("\n") == 1
    first, second = said.json["runs"]
    files = {Path(file).name: Path(file) for file in said.json["files"]}
    assert (
        files["comparison.html"].parent
        == compared.home / "comparisons" / f"{first['run_id']}-{second['run_id']}"
    )
    assert {"comparison.html", "comparison.md", "training-loss.png", "held-out.png"} <= set(files)
    assert {f"samples-{run['run_id']}.png" for run in (first, second)} <= set(files)
    assert (first["family"], second["family"]) == ("dit", "unet")
    for run in (first, second):
        assert run["status"] == "finished" and run["step"] == 4 and run["samples"] == 128
        assert run["seconds"] > 0
        assert run["samples_per_second"] > 0
        assert set(ALL) <= set(run["metrics"])
    text = page(said)
    assert f"| total | {first['parameters']:,} | {second['parameters']:,} |" in text
    assert "| steps | 4 steps |" in text and "| samples | 25 | 25 |" in text
    assert " over held-out draws, 95 %)" in text and "No run is named" not in text
    assert "| model.width | 32 | 8 |" in text and "tracking." not in text
    html = files["comparison.html"].read_text()
    assert not re.findall(r'src="(?!data:)', html) and html.count("<img") == text.count("![")


@pytest.mark.usefixtures("without_curves")
def test_the_page_says_the_same_to_a_person(compare, mine, tmp_path):
    said = compare("small", "second", "--no-log", "--out", tmp_path / "out", "--grid", "0")
    assert [Path(line).name for line in said.out.splitlines()][:2] == [
        "comparison.html",
        "comparison.md",
    ]
    assert "Held-out error (velocity): " in said.err
    assert not list((tmp_path / "out").glob("samples*"))
    for name in ("small", "second"):
        # --no-log
        assert '"comparisons' not in (folder_of(mine, name) / "journal.jsonl").read_text()


def test_the_page_is_an_artifact_of_every_run(compared):
    for name in ("small", "second"):
        folder = folder_of(compared.home, name)
        (logged,) = [
            record
            for record in read_records(folder / "journal.jsonl")
            if (record.get("artifact_path") or "").startswith("comparisons")
        ]
        kept = folder / logged["path"]  # a copy: the page itself may be moved
        assert kept.name == "comparison.html" and kept.exists()


def test_figures_of_one_name_are_one_measurement(compared):
    first, second = (run["measurements"] for run in compared.said.json["runs"])
    assert first == second and set(first) == {"eval"}
    one, other = re.search(
        r"\| measurement of eval \| (.*) \| (.*) \|", page(compared.said)
    ).groups()
    assert one == other
    assert "is measured in" not in compared.said.err


def test_samples_are_drawn_in_chunks_and_are_those_of_one_chunk(mine, monkeypatch):
    sizes = []
    build = SavedRun.network

    def watched(self, device):
        network = build(self, device)
        network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        return network

    monkeypatch.setattr(SavedRun, "network", watched)
    small = open_groups(["small", "second"], Home(mine), print)[0].runs[0]
    saved = small.saved()
    drawn = [draw(saved, 9, 3, batch) for batch in (4, 64)]
    assert set(sizes) == {4, 1, 9}
    images = [drawing.grid.panels[0].images for drawing in drawn]
    assert images[0] == pytest.approx(images[1], abs=1e-5)


@pytest.mark.usefixtures("without_curves")
def test_a_run_without_a_checkpoint_has_no_samples_and_a_page(compare, mine):
    shutil.rmtree(another(mine, "bare", status="running", step=0) / "checkpoints")
    text = page(compare("small", "bare", "--no-log", "--json"))
    assert "No samples of bare: it has no checkpoint yet." in text
    assert "Not finished: bare (running)." in text
    assert "| steps | 4 steps |" in text  # its journal is whole


@pytest.mark.usefixtures("without_curves")
def test_runs_without_a_journal_have_a_page(compare, mine):
    (another(mine, "mute") / "journal.jsonl").unlink()
    assert "Without training metrics in the journal: mute." in page(
        compare("mute", "second", "--no-log", "--json")
    )


@pytest.mark.usefixtures("without_curves")
def test_other_held_out_samples_are_not_compared(compare, mine):
    spec = another(mine, "other") / "spec.yaml"
    original = spec.read_text()
    for change in (("limit: 32", "limit: 16"), ("hold_out: 0.1", "hold_out: 0.2")):
        assert change[0] in original
        spec.write_text(original.replace(*change))
        text = page(compare("small", "other", "--no-log", "--json", "--grid", "0"))
        assert "the runs differ in their data" in text and "lowest" not in text.split("##")[0]


MISTAKES = [
    (["small"], "RUN names 1 runs: a comparison takes 2 to 8"),
    (["small", "nope"], "run 'nope' is unknown"),
    ([*"abcdefghi"], "RUN names 9 runs: a comparison takes 2 to 8"),
    (["small", "swept"], "run 'swept' is a sweep of 3 trials; none of its trials has begun"),
    (["small", "second", "--out", "small.yaml/below"], "--out small.yaml/below cannot be written"),
]


def test_mistakes(compare, mine, tmp_path):
    another(mine, "swept", trials=3)
    (tmp_path / "small.yaml").write_text("")

    def files():
        return {path for path in mine.rglob("*") if "caches" not in path.parts}

    before = files()
    for arguments, message in MISTAKES:
        compare(*arguments).refused(message)
        assert files() == before, arguments


def test_a_run_named_by_id_and_by_name_is_named_twice(compare, mine):
    compare("small", folder_of(mine, "small").name).refused("which is named already")


def test_a_sweep_is_refused_with_its_trials_named(compare, mine):
    sweep = another(mine, "swept", trials=1).name
    trial = another(mine, "trial", parent=sweep, trial=0).name
    assert f"name one of its trials: {trial}." in compare("small", "swept").err
