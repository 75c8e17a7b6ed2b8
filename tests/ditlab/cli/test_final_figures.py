"""Figures at a run's end: which are drawn, what is left, and a signal meanwhile."""

import os
import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from ditlab import open_run
from ditlab.api.final_figures import draw_final_figures, scheduled
from ditlab.cli.train.commands import _draw_figures
from ditlab.spec.files import load_experiment
from support.command import Said, run_inside


@dataclass(frozen=True)
class Quick:
    """A run of two steps that drew its figures under `--quick`."""

    home: Path
    said: Said

    @property
    def run_id(self):
        return str(self.said.json["run_id"])

    @property
    def folder(self):
        return self.home / "train" / self.run_id

    def page(self):
        return (self.folder / "report.html").read_text()


@pytest.fixture(scope="module")
def quick(finished, tmp_path_factory):
    home = tmp_path_factory.mktemp("final-figures") / "home"
    with mock.patch.dict(os.environ):
        del os.environ["DITLAB_FIGURES"]
        said = run_inside("train", finished.spec, "--local", "--quick", "--json", home=home)
    return Quick(home, said.ok())


@pytest.fixture
def at_home(quick, blank_pictures, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(quick.home))
    return quick


def test_a_quick_run_ends_with_samples_and_loss_and_names_the_rest(quick):
    left = set(quick.said.json["figures_left"])
    drawn = {file.stem for file in (quick.folder / "media" / "figures").iterdir()}
    assert drawn == {"samples", "loss"} and not drawn & left
    assert {"trajectory", "attention", "schedule"} <= left
    [line] = [line for line in quick.said.err.splitlines() if "figures were left" in line]
    assert line.startswith(f"{len(left)} of {len(left) + 2} figures")
    assert f"figures {quick.run_id}`" in line
    assert "What the trained network draws." in quick.page()


def test_a_quick_run_prints_its_changes_and_is_the_short_one(quick):
    said = quick.said
    assert said.json["quick"]["batch.size"] == {"was": 32, "is": 16}
    assert "--quick makes " in said.err and "  batch.size=16 (was 32)\n" in said.err
    trained = load_experiment(quick.folder / "spec.yaml")
    found = (trained.name, trained.batch.size, trained.training.steps)
    assert found == ("small-quick", 16, said.json["step"])


def test_the_time_of_figures_is_in_the_table(at_home):
    summary = open_run(at_home.run_id).time()
    assert summary is not None and summary.seconds["figures"] > 0
    assert any(line.split()[:1] == ["figures"] for line in at_home.said.err.splitlines())


def test_the_command_for_the_rest_adds_it_to_the_page(at_home):
    sentence = "The run&#39;s learning rate at each step."
    assert sentence not in at_home.page()
    command = ("figures", at_home.run_id, "--kind", "schedule", "--json")
    said = run_inside(*command, home=at_home.home).ok()
    assert not re.search(r"[^\n\x20-\x7e]", said.err)
    assert sentence in at_home.page()


def test_the_most_telling_of_the_others_is_drawn_where_there_is_any_time(at_home):
    run = open_run(at_home.run_id)
    stages = []
    found = draw_final_figures(run, pytest.fail, stages.append, share=1e-9)
    assert set(found.kinds) - set(found.left) == {"samples", "loss", "trajectory"}
    drawing = [re.sub(", .* left", "", each) for each in stages if each.startswith("drawing")]
    assert drawing == [f"drawing figures {number} of {len(found.kinds)}" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    "first, others, seconds, drawn",
    [
        ("ab", "cde", 0.0, "ab"),
        ("ab", "cde", 1e9, "abcde"),
        ("ab", "cdefg", 1.0, "abc"),  # begun with time left, and finished
        ("ab", "cdefg", 25.0, "abcde"),
        ("", "cde", 0.0, ""),
    ],
)
def test_first_kinds_always_then_others_until_their_time_is_over(first, others, seconds, drawn):
    ticks = count(0.0, 10.0)  # each figure takes 10 s
    kinds = [kind for kind, _ in scheduled(first, others, seconds, lambda: next(ticks))]
    assert "".join(kinds) == drawn


@pytest.mark.parametrize(
    "seconds, left", [(1e9, ["0:30", "0:20", "0:10"]), (15.0, ["0:25", "0:15", "0:05"])]
)
def test_a_stage_has_the_count_and_the_time_left_by_pace_and_by_budget(seconds, left):
    ticks = iter([0.0, 0.0, 10.0, 20.0, 30.0])
    stages = [stage for _, stage in scheduled("ab", "cd", seconds, lambda: next(ticks))]
    expected = [f"drawing figures {at} of 4, {text} left" for at, text in enumerate(left, start=2)]
    assert stages == ["drawing figures 1 of 4", *expected]


INTERRUPTION = KeyboardInterrupt()
REFUSAL = ValueError("what a library made of an interruption")
SAVING = "ditlab.analysis.figures.FigureSet.save_formats"


@pytest.mark.parametrize(
    "place, error",
    [
        (SAVING, INTERRUPTION),
        (SAVING, REFUSAL),
        ("ditlab.api.final_figures.renew_report", INTERRUPTION),
        ("ditlab.api.final_figures.draw_final_figures", INTERRUPTION),
    ],
    ids=["a figure", "within a library", "the page", "before any"],
)
def test_a_signal_leaves_the_figures_of_all_seeds_to_commands_that_are_named(
    at_home, monkeypatch, place, error
):
    """Nothing is raised, so the summaries follow, and exit code 0."""
    monkeypatch.setattr(place, mock.Mock(side_effect=error))
    monkeypatch.setattr("ditlab.api.final_figures.is_interrupted", lambda: error is REFUSAL)
    warned = []
    line = SimpleNamespace(warn=warned.append, say=pytest.fail, stage=lambda _: None)
    seeds = [
        SimpleNamespace(run_id=at_home.run_id, status="finished", run=open_run(at_home.run_id)),
        SimpleNamespace(run_id="5eed0002", status="finished"),  # whose figures are not begun
    ]
    assert _draw_figures(seeds, None, True, line) == []
    assert len(warned) == 2
    for text, seed in zip(warned, seeds, strict=True):
        assert text.startswith(f"run {seed.run_id} is finished; a signal ended")
        assert f"figures {seed.run_id}`" in text
