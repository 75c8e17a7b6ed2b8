"""The page of a run: one file that shows all of it, says what is missing, and shows every name as
text.
"""

import json
import os
import re
from itertools import pairwise
from types import SimpleNamespace

import pytest
from PIL import Image

from ditlab.home import Home
from ditlab.receipts.records import Measurement, measurement_tags
from ditlab.reports.rendering.render import png_texts
from ditlab.runs.failures import Failure, FailureKind
from ditlab.runs.locks import lock_run
from ditlab.runs.page import MOST_BYTES, write_run_report
from ditlab.tracking.history import DEVICES_TAG
from ditlab.tracking.records import update_record
from support.journaled import JournaledRun, family_spec, finished_run
from support.page_reader import PageReader

NASTY = (
    "</script><script>alert('1')</script><img src=x onerror=alert(1)> & \"q\" {{ 7*7 }} "
    + "x" * 10_000
)


def page_of(run, **known):
    """The page of a run's folder, checked as every page must be."""
    path = write_run_report(run.home, run.folder, **known)
    html = path.read_text()
    assert path.name == "report.html" and path.stat().st_size < MOST_BYTES
    reader = PageReader(html)
    attributes = [(key, value or "") for _, attrs in reader.tags for key, value in attrs.items()]
    addresses = [value for key, value in attributes if key in ("src", "href")]
    assert all(each.startswith(("data:", "#")) for each in addresses)
    assert not re.search(r"https?://|url\((?!#)|@import", html)
    ids = [value for key, value in attributes if key == "id"]
    assert len(ids) == len(set(ids))
    assert {each[1:] for each in addresses if each.startswith("#")} <= set(ids)
    assert all(attrs.get("alt") for attrs in reader.all("img"))
    assert all(attrs.get("aria-label") for attrs in reader.all("svg"))
    assert reader.all("html")[0]["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))
    assert not any(key.startswith("on") for key, _ in attributes)
    for content in re.findall(r'<script type="application/json">(.*?)</script>', html, re.DOTALL):
        assert "<" not in content and json.loads(content)["curves"]
    return reader


def check_texts(found, *texts):
    for text in texts:
        assert text in found.text, text


@pytest.fixture
def run(home):
    return JournaledRun(home)


@pytest.mark.parametrize(
    "place, text",
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
    found = page_of(SimpleNamespace(home=Home(home), folder=folder))
    check_texts(
        found,
        *family_spec(place).objective.weights.model_dump(),
        "finished at step 40 of 40",
        "Samples by step",
        "Parameters by component",
        "Differences against the defaults",
    )
    assert ("def main():" in found.text) == bool(text)
    assert len(found.all("img")) == (0 if text else 3)
    assert found.all("input")[0]["aria-valuetext"] == "step 40"


def test_failures_and_recoveries_stand_on_the_timeline(run):
    run.start()
    run.train(range(1, 11), bad=(4, 5))
    run.tags({"ditlab.failure": "non_finite", "ditlab.skipped_steps": "2"})
    lost = "worker 1 on node 10.0.0.5 was lost"
    failure = Failure(FailureKind.LOST_WORKER, lost)
    run.tags(failure.tags(1), after=500)
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
    check_texts(
        found,
        f"failed: lost_worker: {lost}",
        "recovery skipped steps: 2",
        "resumed after step 10 with training.steps: 10 -> 40",
        "started again (3)",
        "steps with NaN or infinity 2",
        "in 4 attempts",
    )
    classes = [attrs.get("class") or "" for attrs in found.all("span")]
    bars = [each.removeprefix("bar ") for each in classes if each.startswith("bar ")]
    assert bars == ["failed", "interrupted", "killed", "finished"]
    (strip,) = [attrs for attrs in found.all("div") if attrs.get("class") == "strip"]
    assert "1 failures, 1 recoveries, 2 steps with NaN or infinity" in strip["aria-label"]


def test_the_spec_stands_against_its_sweep_and_the_defaults(home):
    sweep = JournaledRun(home, name="sweep", trials=2)
    (sweep.folder.path / "sweep.yaml").write_text(
        "base: {name: base, optimizer: {lr: 0.125}, seed: 0}\n"
    )
    trial = JournaledRun(home, parent=sweep.folder.run_id, trial=1)
    trial.start()
    trial.end()
    check_texts(
        page_of(trial),
        "Differences against the base of its sweep",
        "optimizer.lr 0.001 0.125",
        "model.depth 4 6",
        "training.steps 2,400 null",
    )


def test_names_with_markup_stand_as_text(run):
    run.start(**{"parameters." + NASTY[:200]: "5"})
    run.lines[-1:] = []
    texts = dict.fromkeys(("name", "fingerprint", "source"), NASTY)
    run.add("dataset", **texts, counts={NASTY: 3}, context="training")
    run.evaluate(1, **{f"{kind}/{NASTY}": 1.0 for kind in ("train", "eval", "quality")})
    (run.folder.media / "samples-00000001.captions").write_text(f"{NASTY}\n")
    run.add("image", key=NASTY, step=1, path="media/samples-00000001.png")
    run.tags({"ditlab.failure": NASTY, "ditlab.failure_message": NASTY, "ditlab.x": NASTY})
    run.end("failed")
    update_record(run.folder, name=NASTY, message=NASTY)
    found = page_of(run)
    scripts = [attrs for attrs in found.all("script") if attrs.get("type") != "application/json"]
    assert 1 == len(scripts) < len(found.all("script")), "charts have data"
    assert not any(attrs.get("src") == "x" for attrs in found.all("img"))
    assert found.text.count("</script><script>alert('1')</script><img src=x onerror=alert(1)>") >= 8
    assert NASTY in " ".join(found.texts) and "{{ 7*7 }}" in found.text


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
    check_texts(
        found,
        "3 of 4 pictures of samples cannot be shown",
        "2 damaged lines skipped",
        "finished at step 40",
    )
    assert len(found.all("img")) == 1
    run.folder.spec.write_text("model: {family: gone}\n")
    run.folder.journal.unlink()
    check_texts(page_of(run), "The spec cannot be loaded", "The run has no journal yet")
    run.folder.journal.mkdir()
    run.folder.spec.unlink()
    check_texts(page_of(run), "journal.jsonl cannot be read (", "spec.yaml cannot be read")


def test_runs_that_were_killed_that_train_and_that_end_now(run):
    run.start()
    run.train(range(1, 11))
    run.save()
    check_texts(
        page_of(run),
        "No process on this machine trains the run",
        "--resume",
        "not evaluated on held-out samples",
        "has drawn no samples yet",
    )
    with lock_run(run.folder):
        found = page_of(run)
    assert "is training at step 10 of 40" in found.text and "--resume" not in found.text
    assert found.all("progress")[0]["value"] == "0.2500"
    ended = page_of(run, ended="interrupted")
    check_texts(ended, "was interrupted at step 10", "ended: interrupted")


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
        drawn["quality/kid_df"] = 7.0
        run.evaluate(step, **quarters, **drawn, **{"eval/baseline/mean/velocity": 0.9})
    way = Measurement.of({"threads": 1})
    run.tags(measurement_tags({"eval": way, "quality": way}))
    run.train(range(1, 41))
    run.time += 1_800_000
    names = ("zeal", "samples", "adaln", "loss_by_time")
    for name in names:
        path = run.folder.media / "figures" / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(path, pnginfo=png_texts("", f"{name} in words."))
    run.end()
    found = page_of(run)
    check_texts(
        found,
        "held-out velocity 0.3123 step 40; untrained 2; mean 0.9",
        f"Protocol: eval {way.shown}.",
        f"Protocol: quality {way.shown}.",
        "95 % interval",
        "0.25 to 0.75",
        "too narrow (degrees of freedom below 20): quality/kid (7); measure more samples.",
        "GPU hours 1.0",
        "price 2.5",
    )
    assert "kid_low" not in found.text.split("Curves")[0]
    order = (
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
    places = [found.text.index(each) for each in order]
    assert places == sorted(places)
    assert sum(attrs.get("class") == "thumb" for attrs in found.all("details")) == len(names)


def test_a_page_names_each_measure_of_one_thing(run):
    """Held-out means over few and over all samples; the median of the speeds, and the mean over the
    time of steps.
    """
    run.start(**{"evaluation.limit": "64"})
    run.train(range(1, 11))
    speed = {"time/steps": 10.0, "time/forward": 1.0, "perf/samples_per_second": 960.0}
    run.add("metrics", step=10, values=speed)
    run.evaluate(10)
    run.add("metrics", step=10, values={"held_out/velocity": 0.5})
    run.end()
    found = page_of(run)
    check_texts(
        found,
        "on 64 of the 180 held-out samples (evaluation.limit), held_out/... by `ditlab evaluate`",
        "samples/s 1,280 median of the run",
        "mean over these steps 960 samples/s",
    )


def test_classes_have_their_names_under_the_samples(run):
    run.start()
    run.evaluate(0)
    (run.folder.media / "samples-00000000.captions").write_text("cat\ndog\n")
    run.end()
    found = page_of(run)
    assert "Samples by step" in found.text and "Captions of step 0 cat dog" in found.text
    assert any(attrs.get("alt") == "Samples of step 0: cat; dog" for attrs in found.all("img"))
