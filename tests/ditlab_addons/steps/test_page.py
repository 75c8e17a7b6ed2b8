"""A graph to look at, and what needs a run that is to be deleted."""

import pytest

from ditlab.home import Home
from ditlab.reports.page import render_html
from ditlab_addons.steps.ledger import Ledger
from ditlab_addons.steps.page import live_page, removal_remarks, terminal_lines, write_page


def step(name, status="done", needs=(), **more):
    empty = {"reason": "", "runs": [], "places": [], "metrics": [], "seconds": None}
    known = {"step": name, "kind": "train", "status": status, "needs": list(needs)}
    return empty | {"identities": [f"id-{name}"], "forecast": None} | known | more


@pytest.fixture
def steps():
    return [
        step("base", runs=["1a2b3c4d"], metrics=[{"eval/velocity": 0.5}], seconds=12.34),
        step("grown", "running", ["base"]),
        step("scores", "waiting", ["base", "grown"], reason="grown is not done"),
    ]


def test_lines_go_to_the_right_with_what_comes_before(steps):
    assert [*terminal_lines(steps)] == [
        "base        train     done       1a2b3c4d",
        "  grown     train     running",
        "    scores  train     waiting    grown is not done",
    ]
    steps[0]["reason"] = "made with engine.zero.stage 1, not 0; its last bits may differ"
    assert [*terminal_lines(steps)][3] == f"base: {steps[0]['reason']}"
    steps[2] |= {"status": "missing", "reason": "x" * 200}
    assert max(map(len, [*terminal_lines(steps)][:3])) == 80


def test_the_page_leads_to_the_pages_of_runs(steps, home):
    page = Home(home).run("1a2b3c4d").path / "report.html"
    page.parent.mkdir(parents=True)
    page.write_text("a page")
    written = write_page("study", steps, Home(home))
    text = written.read_text()
    (address,) = [part.split('"')[0] for part in text.split('<a href="')[1:] if "report" in part]
    assert (written.parent / address).resolve() == page.resolve()
    for words in ("3 steps: 1 done, 1 waiting, 1 running", "eval/velocity 0.5", "12.3"):
        assert words in text


def test_the_live_page_says_what_runs_no_longer(steps, home, tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("name: study\nsteps: {base: {import: digits}}\n")
    ledger = Ledger(Home(home))
    make = live_page(Home(home), file)
    assert "not made in this home yet" in render_html(make())
    ledger.write_states("study", steps)
    with ledger.locked("id-grown"):
        assert make().status == "running"
    assert make().status == ""
    assert "its process has ended before it was done" in render_html(make())


def test_what_needs_a_run_is_named(steps, home):
    Ledger(Home(home)).write_states("study", steps)
    assert [*removal_remarks(Home(home), ["1a2b3c4d", "other"])] == [
        "1a2b3c4d is step base of study, needed by grown, scores; `ditlab make` makes it again."
    ]
    assert [*removal_remarks(Home(home), ["other"])] == []
