"""The page of a run: one file that shows all of it, says what is missing, and shows every name as
text.
"""

import json
import os
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from PIL import Image

from ditlab.home import Home, RunFolder
from ditlab.receipts.records import Measurement, measurement_tags
from ditlab.reports.rendering.render import png_texts
from ditlab.runs.locks import lock_run
from ditlab.runs.page import MOST_BYTES, write_run_report
from ditlab.tracking.history import DEVICES_TAG
from support.journaled import JournaledRun, family_spec, finished_run

NASTY = (
    "</script><script>alert('1')</script><img src=x onerror=alert(1)> & \"q\" {{ 7*7 }} "
    + "x" * 10_000
)
VOID = {"meta", "link", "img", "input", "br", "hr"}


class PageReader(HTMLParser):
    """Tags, texts, and what is not well formed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.faults: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        self.faults += [f"{tag} is not closed" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def page_of(run, **known) -> PageReader:
    """The page of a run's folder, checked as every page must be."""
    path = write_run_report(run.home, run.folder, **known)
    html = path.read_text(encoding="utf-8")
    assert path.name == "report.html" and path.stat().st_size < MOST_BYTES
    reader = PageReader(html)
    assert reader.faults == []
    addresses = [
        value or ""
        for _, attrs in reader.tags
        for key, value in attrs.items()
        if key in ("src", "href")
    ]
    assert all(each.startswith(("data:", "#")) for each in addresses)
    assert not re.search(r"https?://|url\((?!#)|@import", html)
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert all(each[1:] in ids for each in addresses if each.startswith("#"))
    assert all(attrs.get("alt") for attrs in reader.all("img"))
    assert all(attrs.get("aria-label") for attrs in reader.all("svg"))
    assert reader.all("html")[0]["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))
    assert not any(key.startswith("on") for _, attrs in reader.tags for key in attrs)
    return reader


@dataclass(frozen=True)
class MadeRun:
    """A run's folder in its home."""

    home: Home
    folder: RunFolder


@pytest.fixture
def run(home) -> JournaledRun:
    return JournaledRun(home)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("digits/dit.yaml", ""),
        ("digits/unet.yaml", ""),
        ("region/small.yaml", ""),
        ("pixelhdm/small.yaml", ""),
        ("dlm/small.yaml", "--- 1 ---\ndef main():"),
    ],
)
def test_every_family_has_its_page(home, place, text):
    folder = finished_run(home, place, text)
    found = page_of(MadeRun(Home(home), folder))
    for component in family_spec(place).objective.weights.model_dump():
        assert component in found.text
    for expected in (
        "finished at step 40 of 40",
        "Samples by step",
        "Parameters by component",
        "Differences against the defaults",
    ):
        assert expected in found.text, expected
    assert ("def main():" in found.text) == bool(text)
    assert len(found.all("img")) == (0 if text else 3)
    assert found.all("input")[0]["aria-valuetext"] == "step 40"


def test_failures_and_recoveries_stand_on_the_timeline(run):
    run.start()
    run.train(range(1, 11), bad=(4, 5))
    run.tags({"ditlab.failure": "non_finite", "ditlab.skipped_steps": "2"})
    lost = "worker 1 on node 10.0.0.5 was lost"
    run.tags(
        {"ditlab.failure": "lost_worker", "ditlab.failures": "1", "ditlab.failure_message": lost},
        after=500,
    )
    run.start()
    run.add("resume", step=10, changes={"training.steps": ("10", "40")}, rates="")
    run.train(range(11, 21))
    run.add("end", status="interrupted")
    run.start()
    run.train(range(21, 31))  # killed
    run.start()
    run.train(range(31, 41))
    run.end()
    found = page_of(run)
    for expected in (
        f"failed: lost_worker: {lost}",
        "recovery skipped steps: 2",
        "resumed after step 10 with training.steps: 10 -> 40",
        "started again (3)",
        "steps with NaN or infinity 2",
        "in 4 attempts",
    ):
        assert expected in found.text, expected
    bars = [
        attrs["class"]
        for attrs in found.all("span")
        if (attrs.get("class") or "").startswith("bar ")
    ]
    assert bars == ["bar failed", "bar interrupted", "bar killed", "bar finished"]
    strip = next(attrs for attrs in found.all("div") if attrs.get("class") == "strip")
    assert "1 failures, 1 recoveries, 2 steps with NaN or infinity" in (strip["aria-label"] or "")


def test_the_spec_stands_against_its_sweep_and_the_defaults(home):
    sweep = JournaledRun(home, name="sweep", trials=2)
    (sweep.folder.path / "sweep.yaml").write_text(
        "base: {name: base, optimizer: {lr: 0.125}, seed: 0}\n"
    )
    trial = JournaledRun(home, parent=sweep.folder.run_id, trial=1)
    trial.start()
    trial.end()
    found = page_of(trial)
    assert (
        "Differences against the base of its sweep" in found.text
        and "optimizer.lr 0.001 0.125" in found.text
    )
    assert "model.depth 4 6" in found.text and "training.steps 2,400 null" in found.text


def test_names_with_markup_stand_as_text(run):
    run.start(**{"parameters." + NASTY[:200]: "5"})
    run.lines[-1:] = []
    run.add(
        "dataset",
        name=NASTY,
        fingerprint=NASTY,
        source=NASTY,
        counts={NASTY: 3},
        context="training",
    )
    run.evaluate(1, **{f"eval/{NASTY}": 1.0, f"quality/{NASTY}": 2.0})
    (run.folder.media / "samples-00000001.captions").write_text(f"{NASTY}\n")
    run.add("image", key=NASTY, step=1, path="media/samples-00000001.png")
    run.tags({"ditlab.failure": NASTY, "ditlab.failure_message": NASTY, "ditlab.x": NASTY})
    run.end("failed")
    found_record = json.loads(run.folder.record.read_text())
    run.folder.record.write_text(json.dumps({**found_record, "name": NASTY, "message": NASTY}))
    found = page_of(run)
    scripts = [attrs for attrs in found.all("script") if attrs.get("type") != "application/json"]
    assert len(scripts) == 1 and not any(attrs.get("src") == "x" for attrs in found.all("img"))
    assert found.text.count("</script><script>alert('1')</script><img src=x onerror=alert(1)>") >= 8
    assert NASTY in " ".join(found.texts) and "{{ 7*7 }}" in found.text


def test_data_of_charts_cannot_end_their_script(run):
    run.start()
    run.add("metrics", step=1, values={"train/</script><b>": 1.0, "train/loss": 2.0})
    run.end()
    html = write_run_report(run.home, run.folder).read_text()
    for content in re.findall(r'<script type="application/json">(.*?)</script>', html, re.DOTALL):
        assert "<" not in content and json.loads(content)["curves"]


def test_missing_and_damaged_parts_cost_themselves_alone(run):
    run.start()
    for step in (0, 20, 40):
        run.evaluate(step)
    run.train(range(1, 41))
    run.add("image", key="samples", step=50, path="../../../etc/passwd")
    run.end()
    media = run.folder.media
    (media / "samples-00000000.png").unlink()
    (media / "samples-00000020.png").write_bytes((media / "samples-00000040.png").read_bytes()[:40])
    with run.folder.journal.open("ab") as file:
        file.write(b'{"kind":"metrics","time":1,"step":3\nnot JSON\n')
    found = page_of(run)
    assert (
        "3 of 4 pictures of samples cannot be shown" in found.text
        and "2 damaged lines passed over" in found.text
    )
    assert len(found.all("img")) == 1 and "finished at step 40" in found.text
    run.folder.spec.write_text("model: {family: gone}\n")
    run.folder.journal.unlink()
    found = page_of(run)
    assert "The spec cannot be loaded" in found.text and "The run has no journal yet" in found.text
    run.folder.journal.mkdir()
    run.folder.spec.unlink()
    found = page_of(run)
    assert (
        "journal.jsonl cannot be read (" in found.text and "spec.yaml cannot be read" in found.text
    )


def test_runs_that_were_killed_that_train_and_that_end_now(run):
    run.start()
    run.train(range(1, 11))
    run.save()
    found = page_of(run)
    assert "No process on this machine trains the run" in found.text and "--resume" in found.text
    assert (
        "not evaluated on held-out samples" in found.text
        and "has drawn no samples yet" in found.text
    )
    with lock_run(run.folder):
        found = page_of(run)
    assert "is training at step 10 of 40" in found.text and "--resume" not in found.text
    assert found.all("progress")[0]["value"] == "0.2500"
    found = page_of(run, ended="interrupted")
    assert "was interrupted at step 10" in found.text and "ended: interrupted" in found.text


def test_many_and_large_pictures_keep_the_page_small(run, monkeypatch):
    monkeypatch.setattr("ditlab.runs.page_pictures.BUDGET", 200_000)
    run.start()
    noise = Image.frombytes("RGB", (200, 200), os.urandom(120_000))
    for step in range(0, 200, 2):
        run.evaluate(step)
        noise.save(run.folder.media / f"samples-{step:08d}.png")
    run.end()
    found = page_of(run)
    assert "60 of 100 steps are shown" in found.text
    labels = [attrs["data-label"] for attrs in found.all("div") if "data-label" in attrs]
    assert labels[0] == "step 0" and len(labels) < 60
    assert sum(len(attrs["src"] or "") for attrs in found.all("img")) < 280_000


def test_secrets_are_hidden(run, monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", "s3cr3t-value")
    run.start()
    run.tags({"ditlab.failure": "crash", "ditlab.failure_message": "no access with s3cr3t-value"})
    run.end("failed")
    found = page_of(run)
    assert "s3cr3t-value" not in found.text and "no access with ***" in found.text


def test_one_screen_answers_and_figures_are_small(run):
    run.start()
    run.tags({DEVICES_TAG: "2 GPU at 2.5"})
    quarters = {f"eval/velocity_t{quarter}": 0.5 for quarter in range(4)}
    for step in (0, 20, 40):
        drawn = {"quality/kid": 0.5, "quality/kid_low": 0.25, "quality/kid_high": 0.75}
        run.evaluate(step, **quarters, **drawn, **{"eval/baseline/mean/velocity": 0.9})
    run.tags(measurement_tags({"eval": (way := Measurement.of({"threads": 1})), "quality": way}))
    run.train(range(1, 41))
    run.time += 1_800_000
    names = ("zeal", "samples", "adaln", "loss_by_time")
    for name in names:
        path = run.folder.media / "figures" / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(path, pnginfo=png_texts("", f"{name} in words."))
    run.end()
    found = page_of(run)
    assert "held-out velocity 0.3123 step 40; untrained 2; mean 0.9" in found.text
    assert (
        f"Protocol: eval {way.shown}." in found.text
        and f"Protocol: quality {way.shown}." in found.text
    )
    assert (
        "95 % interval" in found.text
        and "0.25 to 0.75" in found.text
        and "kid_low" not in found.text.split("Curves")[0]
    )
    assert "GPU hours 1.0" in found.text and "price 2.5" in found.text
    places = [
        found.text.index(each)
        for each in (
            "held-out velocity",
            "GPU hours",
            "Samples by step",
            "train 0.3162",
            "t0 to t3:",
            "Differences against the defaults",
            "samples/s 9 of 10",
            "Bars: attempts",
            "What the trained network draws.",
            "Held-out loss by time",
            "How time scales",
            "zeal in words.",
            "component parameters",
        )
    ]
    assert places == sorted(places)
    assert sum(attrs.get("class") == "thumb" for attrs in found.all("details")) == len(names)


@pytest.mark.parametrize("limit", ["64", "2048"])
def test_a_page_names_each_measure_of_one_thing(run, limit):
    """Held-out means over few and over all samples; the median of the speeds, and the mean over the
    time of steps.
    """
    run.start(**{"evaluation.limit": limit})
    run.train(range(1, 11))
    run.add(
        "metrics",
        step=10,
        values={"time/steps": 10.0, "time/forward": 1.0, "perf/samples_per_second": 960.0},
    )
    run.evaluate(10)
    run.add("metrics", step=10, values={"held_out/velocity": 0.5})
    run.end()
    text = page_of(run).text
    sentence = (
        "on 64 of the 180 held-out samples (evaluation.limit), held_out/... by `ditlab "
        "evaluate` on all 180, so"
    )
    assert (sentence in text) == (limit == "64")
    assert (
        "samples/s 1,280 median of the run" in text
        and "mean over these steps 960 samples/s" in text
    )


def test_classes_have_their_names_under_the_samples(run):
    run.start()
    run.evaluate(0)
    (run.folder.media / "samples-00000000.captions").write_text("cat\ndog\n")
    run.end()
    found = page_of(run)
    assert "Samples by step" in found.text and "Captions of step 0 cat dog" in found.text
    assert any(attrs.get("alt") == "Samples of step 0: cat; dog" for attrs in found.all("img"))
