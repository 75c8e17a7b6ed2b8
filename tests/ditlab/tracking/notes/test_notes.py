"""Text of a run's note and of a sweep's: what a reviewer reads, and names that hold markup as
text.
"""

import re
from html import unescape

import pytest

from ditlab.receipts.records import Measurement, measurement_tags
from ditlab.tracking.history import MAIN_TAG, JournalFacts, ResultPoint, RunResults
from ditlab.tracking.names import TAG_LENGTH
from ditlab.tracking.notes import RunNote, SweepNote, plain, with_addresses

HOSTILE = (
    "<script>alert(1)</script> [x](javascript:y) ![z](http://a/b) `c` *d* @e www.f.g # h | i\n\n> j"
    + "k" * 10_000
)


def results(**series):
    found = RunResults()
    for name, points in series.items():
        for step, value in points:
            found.add(name.replace("__", "/"), ResultPoint(step, value, 0))
    return found


def facts(**changes):
    params = {
        "parameters.total": "2238340",
        "model.family": "dit",
        "data.kind": "digits",
        "optimizer.lr": "0.001",
        "batch.size": "128",
        "sampling.steps": "25",
        "objective.time.kind": "uniform",
    }
    dataset = {"name": "digits", "counts": {"train": 1617}}
    values = {"name": "digits-dit", "family": "dit", "params": params, "dataset": dataset}
    return JournalFacts(**(values | changes))  # type: ignore[arg-type]


def cells(text):
    """The lines of a note's table, without the spaces for MLflow's eyes."""
    return "\n".join(line.replace("&ensp;", "") for line in text.splitlines() if line[:1] == "|")


def test_a_note_says_what_the_run_is_and_how_its_result_compares():
    measured = results(
        eval__velocity_t0=[(0, 1.8), (600, 0.5)],
        eval__velocity=[(0, 1.7), (300, 0.31), (600, 0.42)],
        assessed__bound=[(600, 1.9)],
        assessed__baseline__bigram__nats_per_token=[(600, 2.5)],
        quality__agreement=[(600, 0.8)],
        quality__agreement_chance=[(600, 0.1)],
        quality__agreement_real=[(600, 0.97)],
        quality__kid=[(600, 0.5)],
        quality__kid_low=[(600, 0.25)],
        quality__kid_high=[(600, 0.75)],
        quality__kid_df=[(600, 7.0)],
    )
    way = Measurement.of({"threads": 1})
    tags = {MAIN_TAG: "eval/velocity"} | measurement_tags({"eval": way, "quality": way})
    known = facts(tags=tags, images={"samples": 600})
    text = RunNote("1a2b3c4d", known, measured, 600, 2400).text()
    for part in (
        "2,238,340 parameters",
        "trained on digits (1,617 samples)",
        "step 600 of 2,400",
        "**eval/velocity 0.42** at step 600; 1.7 untrained; lowest 0.31 at step 300.",
        f"Protocols: eval {way.shown}, quality {way.shown}.",
        "ditlab train spec.yaml --resume 1a2b3c4d",
        "![samples of step 600](picture:samples/samples-00000600.png)",
    ):
        assert part in text, part
    head, _, first, *rows = cells(text).splitlines()
    assert head == "| metric | now | untrained | to compare |"
    assert first == "| eval/velocity | 0.42 | 1.7 |  |"
    assert "| assessed/bound | 1.9 |  | bigram 2.5 |" in rows
    assert "| quality/agreement | 0.8 |  | chance 0.1, real 0.97 |" in rows
    assert "| quality/kid | 0.5 (0.25 to 0.75) |  |  |" in rows and plain("kid_low") not in text
    assert plain("narrow (degrees of freedom below 20): quality/kid (7); measure") in text
    assert rows[-1].startswith(f"| {plain('eval/velocity_t0')} ")
    sections = re.findall(r"^- (?:model|objective|data|optimizer|batch)&#58; ", text, re.MULTILINE)
    assert len(sections) == 5 and "Page of this run" not in text


@pytest.mark.parametrize(
    ("limit", "held_out"), [("64", 180), ("180", 180), ("null", 180), ("64", None)]
)
def test_a_note_tells_figures_of_few_and_of_all_held_out_samples_apart(limit, held_out):
    known = facts()
    known.params["evaluation.limit"] = limit
    known.dataset["counts"] = {"train": 1617} | ({"held_out": held_out} if held_out else {})
    both = results(eval__velocity=[(600, 2.97)], held_out__velocity=[(600, 3.0)])
    text = RunNote("1a2b3c4d", known, both, 600, 600).text()
    sentence = (
        f"eval/... is measured in training on {limit} of the 180 held-out samples "
        "(evaluation.limit), held_out/... by"
    )
    assert (sentence in text) == (limit == "64" and held_out == 180)
    one = RunNote("1a2b3c4d", known, results(eval__velocity=[(600, 2.97)]), 6, 6).text()
    assert "so they differ" not in one


def test_a_finished_run_links_its_page_and_is_not_resumed():
    known = facts(status="finished", page="report.html")
    text = RunNote("1a2b3c4d", known, RunResults(), 9, 9).text()
    assert "[Page of this run](page:report.html)" in text and "--resume" not in text
    shown = with_addresses(text, "7", "abc")
    assert "(#/experiments/7/runs/abc/artifacts/report.html?workflowType=machine_learning)" in shown
    assert "page:" not in shown
    shown = with_addresses("[all steps](charts:) ![s](picture:samples/latest.png)", "7", "abc")
    assert "&viewStateShareKey=ditlab&compareRunsMode=CHART)" in shown
    assert "(get-artifact?path=samples/latest.png&run_uuid=abc)" in shown


def test_names_with_markup_are_text_everywhere():
    """MLflow's renderer is GitHub's Markdown: what is no letter, digit or harmless mark must be an
    entity.
    """
    params = {"model.family": HOSTILE, "data.path": HOSTILE, "parameters.total": "5"}
    known = facts(
        name=HOSTILE, family=HOSTILE, params=params, dataset={"name": HOSTILE}, status="failed"
    )
    text = RunNote("1a2b3c4d", known, results(eval__x=[(0, 1.0)]), 1, 1, message=HOSTILE).text()
    assert len(text) < TAG_LENGTH
    prose = re.sub(r"```\n.*?\n```", "", text, flags=re.DOTALL).replace("`spec.yaml`", "")
    for mark in ("<", ">", "`", "[", "]", "@", "www.", "://", "#  h"):
        assert mark not in prose.replace("&#", "")
    assert "<" not in prose and "<script>alert(1)</script> [x](javascript:y)" in unescape(prose)
    block = re.findall(r"```\n(.*?)\n```", text, flags=re.DOTALL)[0]
    assert "`" not in block and max(map(len, block.splitlines())) <= 160


def test_a_text_is_one_line_without_secrets(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "correct-horse")
    assert plain("a\n\u202eb\x1b[1m correct-horse") == "a b &#91;1m &#42;&#42;&#42;"
    assert len(plain("x" * 10_000)) <= 120


def test_a_sweeps_note_ranks_and_shows_the_best_spec():
    ranking = {
        "trial": list(range(30)),
        "run": [f"run{number}" for number in range(30)],
        "status": ["finished"] * 30,
        "step": [600] * 30,
        "eval/velocity": [0.1 * number for number in range(30)],
        "optimizer.lr": [HOSTILE] * 30,
        "seconds": [1.0] * 30,
        "note": [""] * 30,
    }
    figures = ("report/curves.png", "report/effects.png")
    note = SweepNote(
        "5e6f7a8b",
        HOSTILE,
        "interrupted",
        ["eval/velocity"],
        ["min"],
        30,
        ranking,
        "trial 0 (run run0)",
        {"model.family": "dit", "optimizer.lr": "0.01"},
        figures,
        "report/report.html",
    )
    text = note.text()
    rows = cells(text).splitlines()
    assert rows[2].startswith("| 0 | run0 | finished | 600 | 0 |") and len(rows) < 15
    assert f"{30 - len(rows) + 2} more in `ranking.json`" in text
    assert "Best: trial 0" in text and "- optimizer&#58; lr=0.01" in text
    assert all(f"(picture:{figure})" in text for figure in figures)
    assert "(page:report/report.html)" in text
    assert "ditlab tune --resume 5e6f7a8b" in text and len(text) < TAG_LENGTH
    assert "<script>" not in text
    empty = SweepNote("5e6f7a8b", "s", "running", ["eval/velocity"], ["min"], 4, {}).text()
    assert "sweep of 4 trials by eval/velocity (min)" in empty
