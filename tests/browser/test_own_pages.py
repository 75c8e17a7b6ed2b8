"""DiTLab's own pages in a browser: no error, readable, as wide as a telephone, and names of any
kind as text.
"""

import threading

import pytest

from ditlab.home import Home
from ditlab.reports.sweep_records import AxisInfo, MetricCurve, SweepSummary, Trial
from ditlab.reports.sweep_report import write_sweep_report
from ditlab.runs.page import write_run_report
from ditlab_addons.compare.comparison import Comparison
from ditlab_addons.compare.page import write_comparison
from ditlab_addons.watch.live_page import LivePage
from support.chromium import chromium, faults_of, find_chromium, visit
from support.compared import compared_run
from support.journaled import JournaledRun, finished_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        find_chromium() is None, reason="no Chromium here, or no playwright to steer it"
    ),
]
HOSTILE = (
    "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'> & \"q\" "
    + "x" * 10_000
)
FAMILIES = ("digits/dit", "digits/unet", "region/small", "pixelhdm/small", "dlm/small")


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def hostile_run(home, place="digits/dit.yaml"):
    """A run whose name, parameters, tags and captions are markup, killed once, with a step that was
    not finite.
    """
    run = JournaledRun(home, place, name=HOSTILE)
    run.start(**{"data.path": HOSTILE})
    run.evaluate(0, text=HOSTILE if place.startswith("dlm") else "")
    run.train(range(1, 300), bad=[7])
    (run.folder.media / "samples-00000000.captions").write_text(f"{HOSTILE}\n" * 3)
    run.tags({"ditlab.failure_message": HOSTILE})
    run.start()
    run.train(range(300, 320))
    run.evaluate(319)
    run.save(status="failed", message=HOSTILE, step=319)
    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_of_a_run(browser, home, family):
    text = "def main():" if family.startswith("dlm") else ""
    plain = finished_run(home, f"{family}.yaml", text)
    hostile = hostile_run(home, f"{family}.yaml")
    for folder in (plain, hostile.folder):
        path = write_run_report(Home(home), folder)
        assert faults_of(browser, path.as_uri()) == []
    with visit(browser, path.as_uri()) as one:
        assert one.page.evaluate("window.broken") is None
        assert "window.broken" in one.page.inner_text("h1")


def test_the_slider_and_the_keys_change_what_is_shown(browser, home):
    path = write_run_report(Home(home), finished_run(home))
    with visit(browser, path.as_uri()) as one:
        page = one.page
        shown = page.locator(".slide:visible img").get_attribute("alt")
        page.locator("input[type=range]").first.press("ArrowLeft")
        assert page.locator(".slide:visible img").get_attribute("alt") != shown
        legend = page.locator("output.legend").first
        last = legend.inner_text()
        page.locator(".plot").first.hover(position={"x": 90, "y": 60})
        assert legend.inner_text() != last
        page.mouse.move(1, 1)
        assert legend.inner_text() == last and one.faults == []


def test_the_live_page_grows_with_its_run(browser, home):
    run = JournaledRun(home)
    run.start()
    run.evaluate(0)
    run.train(range(1, 11))
    run.save()
    with LivePage(run.home, run.folder, 0, print) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert faults_of(browser, server.url) == []
            with visit(browser, server.url) as one:
                before = one.page.locator("output.legend").first.inner_text()
                run.train(range(11, 31))
                run.save()
                one.page.wait_for_function(
                    "text => document.querySelector('output.legend').innerText !== text",
                    arg=before,
                    timeout=30_000,
                )
                assert one.faults == []
        finally:
            server.shutdown()
            thread.join()


def test_a_comparison(browser, tmp_path):
    runs = [compared_run(), compared_run("bbbb", name=HOSTILE, spec={"name": HOSTILE})]
    page, *_ = write_comparison(Comparison(runs, seed=0), tmp_path)
    assert faults_of(browser, page.as_uri()) == []


def test_the_report_of_a_sweep(browser, tmp_path):
    curves = {"eval/loss": MetricCurve([10, 100], [2.0, 1.0])}

    def trial(number):
        values = {"optimizer.lr": 10.0**-number, "time.kind": HOSTILE}
        found = {"eval/loss": 1.0 + number}
        end = ("finished", 100, 100, 12.0)
        return Trial(number, f"run-{number}", values, *end, found, curves, HOSTILE)

    trials = [*map(trial, range(1, 5))]
    axes = [AxisInfo("optimizer.lr", "log"), AxisInfo("time.kind", "category")]
    facts = ("random", "asha", 90.0, len(trials), HOSTILE)
    summary = SweepSummary("5e6f", HOSTILE, ("eval/loss",), ("min",), axes, trials, *facts)
    page, *_ = write_sweep_report(summary, tmp_path, f"name: {HOSTILE}", "ditlab tune")
    assert faults_of(browser, page.as_uri()) == []
