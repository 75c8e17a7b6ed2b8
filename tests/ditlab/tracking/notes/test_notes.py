"""Text of a run's note and of a sweep's: what a reviewer reads, and names that hold markup as
text.
"""

import re
from html.parser import HTMLParser

import pytest

from ditlab.receipts.records import Measurement, measurement_tags
from ditlab.tracking.history import MAIN_TAG, JournalFacts, ResultPoint, RunResults
from ditlab.tracking.names import TAG_LENGTH
from ditlab.tracking.notes import RunNote, SweepNote, plain, with_addresses

HOSTILE = (
    "<script>alert(1)</script> [x](javascript:y) ![z](http://a/b) `c` *d* @e www.f.g # h | i\n\n> j"
    + "k" * 10_000
)


class Elements(HTMLParser):
    """Elements and text of an HTML text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def results(**series: list[tuple[int, float]]) -> RunResults:
    found = RunResults()
    for name, points in series.items():
        for step, value in points:
            found.add(name.replace("__", "/"), ResultPoint(step, value, 0))
    return found


def facts(**changes: object) -> JournalFacts:
    params = {
        "parameters.total": "2238340",
        "model.family": "dit",
        "model.depth": "4",
        "data.kind": "digits",
    }
    params |= {
        "optimizer.lr": "0.001",
        "batch.size": "128",
        "sampling.steps": "25",
        "objective.time.kind": "uniform",
    }
    dataset = {"name": "digits", "counts": {"train": 1617}}
    values = {"name": "digits-dit", "family": "dit", "params": params, "dataset": dataset}
    return JournalFacts(**(values | changes))  # type: ignore[arg-type]


def cells(text: str) -> str:
    """The lines of a note's table, without the spaces for MLflow's eyes."""
    return "\n".join(line.replace("&ensp;", "") for line in text.splitlines() if line[:1] == "|")


def test_a_note_says_what_the_run_is_and_how_its_result_compares() -> None:
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
    )
    measured_with = measurement_tags(
        {"eval": (way := Measurement.of({"threads": 1})), "quality": way}
    )
    note = RunNote(
        "1a2b3c4d",
        facts(tags={MAIN_TAG: "eval/velocity"} | measured_with, images={"samples": 600}),
        measured,
        600,
        2400,
    )
    text = note.text()
    assert (
        "2,238,340 parameters" in text
        and "trained on digits (1,617 samples)" in text
        and "step 600 of 2,400" in text
    )
    assert "**eval/velocity 0.42** at step 600; 1.7 untrained; lowest 0.31 at step 300." in text
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in cells(text).splitlines()
    ]
    assert rows[0] == ["metric", "now", "untrained", "to compare"] and rows[2] == [
        "eval/velocity",
        "0.42",
        "1.7",
        "",
    ]
    assert ["assessed/bound", "1.9", "", "bigram 2.5"] in rows
    assert ["quality/agreement", "0.8", "", "chance 0.1, real 0.97"] in rows
    assert rows[-1][0] == plain("eval/velocity_t0")
    assert ["quality/kid", "0.5 (0.25 to 0.75)", "", ""] in rows and not any(
        "kid_low" in row[0] for row in rows
    )
    assert f"Protocols: eval {way.shown}, quality {way.shown}." in text
    assert (
        len(
            [
                line
                for line in text.splitlines()
                if re.match(r"- (model|objective|data|optimizer|batch)&#58; ", line)
            ]
        )
        == 5
    )
    assert "ditlab train spec.yaml --resume 1a2b3c4d" in text
    assert "![samples of step 600](picture:samples/samples-00000600.png)" in text
    assert "Page of this run" not in text


@pytest.mark.parametrize(
    ("limit", "held_out"), [("64", 180), ("180", 180), ("null", 180), ("64", None)]
)
def test_a_note_tells_figures_of_few_and_of_all_held_out_samples_apart(limit, held_out) -> None:
    known = facts()
    known.params["evaluation.limit"] = limit
    known.dataset["counts"] = {"train": 1617} | ({"held_out": held_out} if held_out else {})
    both = results(eval__velocity=[(600, 2.97)], held_out__velocity=[(600, 3.0)])
    text = RunNote("1a2b3c4d", known, both, 600, 600).text()
    sentence = (
        "eval/... is measured in training on 64 of the 180 held-out samples "
        "(evaluation.limit), held_out/... by"
    )
    assert (sentence in text) == (limit == "64" and held_out == 180)
    assert (
        "so they differ"
        not in RunNote("1a2b3c4d", known, results(eval__velocity=[(600, 2.97)]), 6, 6).text()
    )


def test_a_finished_run_links_its_page_and_is_not_resumed() -> None:
    text = RunNote(
        "1a2b3c4d", facts(status="finished", page="report.html"), RunResults(), 9, 9
    ).text()
    assert "[Page of this run](page:report.html)" in text and "--resume" not in text
    shown = with_addresses(text, "7", "abc")
    assert "(#/experiments/7/runs/abc/artifacts/report.html?workflowType=machine_learning)" in shown
    assert "page:" not in shown
    shown = with_addresses("[all steps](charts:) ![s](picture:samples/latest.png)", "7", "abc")
    assert "&viewStateShareKey=ditlab&compareRunsMode=CHART)" in shown
    assert "(get-artifact?path=samples/latest.png&run_uuid=abc)" in shown


def test_names_with_markup_are_text_everywhere() -> None:
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
    shown = Elements(prose)
    assert shown.elements == [] and "<script>alert(1)</script> [x](javascript:y)" in shown.text
    block = re.findall(r"```\n(.*?)\n```", text, flags=re.DOTALL)[0]
    assert "`" not in block and max(map(len, block.splitlines())) <= 160


def test_a_text_is_one_line_without_secrets(monkeypatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "correct-horse")
    assert plain("a\n\u202eb\x1b[1m correct-horse") == "a b &#91;1m &#42;&#42;&#42;"
    assert len(plain("x" * 10_000)) <= 120


def test_a_sweeps_note_ranks_and_shows_the_best_spec() -> None:
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
    assert (
        all(f"(picture:{figure})" in text for figure in figures)
        and "(page:report/report.html)" in text
    )
    assert "ditlab tune --resume 5e6f7a8b" in text and len(text) < TAG_LENGTH
    assert "<script>" not in text
    empty = SweepNote("5e6f7a8b", "s", "running", ["eval/velocity"], ["min"], 4, {}).text()
    assert "sweep of 4 trials by eval/velocity (min)" in empty
