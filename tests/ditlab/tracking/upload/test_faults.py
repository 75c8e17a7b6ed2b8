"""Faults of the server and killed processes: no point is lost, none arrives twice, no step
waits.
"""

import json
import random
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from ditlab.home import Home
from ditlab.tracking.history import metric_history
from ditlab.tracking.records import create_run
from ditlab.tracking.tracker import RunTracker
from ditlab_addons.housekeeping.sync import sync
from support.clusters.faults import wait_until
from support.disk import small_disk
from support.forked import Forked
from support.proxy import Fault, Proxy
from support.stored import Stored, draw

LONGEST_CALL = 1.0
"""Seconds. A call takes 20 microseconds; a machine that is busy may stretch one, a call that waits
for MLflow takes two seconds and more in these tests."""


class Logging:
    """Calls of a training loop to the tracker, which keeps the longest time that one took."""

    def __init__(self, folder, uri, home):
        self.said = []
        self.tracker = RunTracker(folder, uri, home, warn=self.said.append)
        self.longest = 0.0
        self.call(self.tracker.start, "digits-dit", "faults", "dit", {"depth": "9"})

    def call(self, log, *arguments):
        begin = time.perf_counter()
        log(*arguments)
        self.longest = max(self.longest, time.perf_counter() - begin)

    def metrics(self, step):
        values = {"train/loss": 1 / (step + 1), "train/lr": 1e-4}
        self.call(self.tracker.journal.log_metrics, step, values)

    def steps(self, first, end, seconds=0.0):
        """Log steps `first` to `end` - 1 over about `seconds`, with a picture and a tag at every
        hundredth.
        """
        for step in range(first, end):
            self.metrics(step)
            if step % 100 == 0:
                picture = draw(self.tracker.folder.media / f"{step}.png", step % 256)
                self.call(self.tracker.log_image, "samples", step, picture)
                self.call(self.tracker.set_tags, {"at": str(step)})
            time.sleep(seconds / (end - first))


def check_all_arrived(uri, folder, steps):
    """MLflow must have one run, with every step of `Logging.steps` once."""
    client, run = stored_run(uri, folder)
    points = client.get_metric_history(run.info.run_id, "train/loss")
    expected = [(step, 1 / (step + 1)) for step in range(steps)]
    assert sorted((p.step, p.value) for p in points) == expected
    assert len(client.get_metric_history(run.info.run_id, "train/lr")) == steps
    assert run.data.tags["at"] == str((steps - 1) // 100 * 100)
    assert run.data.params == {"depth": "9"}
    images = [file.path for file in client.list_artifacts(run.info.run_id, "images")]
    for ending in (".png", ".webp"):
        assert sorted(image_steps(images, ending)) == list(range(0, steps, 100))


def stored_run(uri, folder):
    """Client, and the one run in MLflow."""
    import mlflow

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("faults").experiment_id
    (run,) = client.search_runs([experiment], f"tags.`ditlab.run` = '{folder.run_id}'")
    return client, run


def image_steps(paths, ending):
    """Steps of the history's pictures; the newest one is another card's."""
    return [
        int(re.findall(r"\+step\+(\d+)\+", path)[0])
        for path in paths
        if "~steps+" in path and path.endswith(ending)
    ]


@pytest.fixture
def proxy(server):
    server.start()
    with Proxy(server.uri) as proxy:
        yield proxy


class Scenario(NamedTuple):
    """Trouble of requests while a run of 400 steps is logged."""

    fault: Fault = "none"
    when: str = "first"
    """`first`: from the first request on; `later`: once the run is known to the server."""
    only: str = ""
    """Words of the requests that are in trouble; empty for all."""
    delay: float = 0.0
    """Seconds of each request."""

    def play(self, proxy, home, folder):
        proxy.delay, proxy.only = self.delay, self.only
        if self.when == "first":
            proxy.fault = self.fault
        run = Logging(folder, proxy.uri, home)
        run.steps(0, 100)
        if self.when == "later":
            wait_until(lambda: run.tracker.mlflow_run_id is not None, 60, "a run")
        proxy.fault = self.fault
        run.steps(100, 300, seconds=2.5 + 2 * self.delay)
        if self.fault != "none":  # MLflow's client sends a request twice
            wait_until(lambda: proxy.num_faulty >= 2, 60, "two requests")
        proxy.fault = "none"
        proxy.delay = 0
        run.steps(300, 400)
        run.call(run.tracker.end, "finished")
        assert run.tracker.close(60) == 0
        assert run.longest < LONGEST_CALL
        check_all_arrived(proxy.uri, folder, 400)


SCENARIOS = {
    "slow": Scenario(delay=2.0),
    "500 first": Scenario("500"),
    "drop later": Scenario("drop", "later"),
    # the server did its part; the same request again must change nothing
    "lost run": Scenario("swallow", only="runs/create"),
    "lost batch": Scenario("swallow", only="runs/log-batch"),
    "lost file": Scenario("swallow", only="PUT "),
    "lost tag": Scenario("swallow", only="runs/set-tag"),
}


@pytest.fixture(scope="module")
def outcomes(server, tmp_path_factory):
    """Every scenario, five at a time: each is a run with a proxy of its own, and mostly waits,
    beside other tests.
    """
    server.start()
    home = Home(tmp_path_factory.mktemp("faults")).ensure()
    facts = {"family": "dit", "spec_hash": "abc"}

    def play(scenario):
        with Proxy(server.uri) as proxy:
            folder = create_run(home, "digits-dit", tracking_uri=proxy.uri, **facts)
            scenario.play(proxy, home, folder)

    with ThreadPoolExecutor(5) as pool:
        yield {name: pool.submit(play, scenario) for name, scenario in SCENARIOS.items()}


@pytest.mark.slow
def test_killed_in_the_middle_and_down_at_the_end(server, home, new_run, ditlab):
    server.start()
    folder = new_run(tracking_uri=server.uri)
    run = Logging(folder, server.uri, home)
    run.steps(0, 300, seconds=3)
    server.kill()
    run.steps(300, 600, seconds=3)
    server.start()
    run.steps(600, 800, seconds=2)
    server.kill()
    run.steps(800, 900)
    run.call(run.tracker.end, "finished")
    assert run.tracker.close(5) > 0
    assert run.longest < LONGEST_CALL
    server.start()
    (synced,) = ditlab("runs", "sync", "--json").json["synced"]
    assert synced["sent"] > 0 and synced["left"] == 0
    check_all_arrived(server.uri, folder, 900)


KILLED = """
import itertools, sys, time
from PIL import Image
from ditlab.home import Home
from ditlab.tracking.tracker import RunTracker
run_id, uri, first, incarnation = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
home = Home.from_environment()
tracker = RunTracker(home.run(run_id), uri, home, budget=1000, warn=lambda message: None)
tracker.start("digits-dit", "faults", "dit", {"depth": "9"}, {f"incarnation.{incarnation}": "begun"})
tracker.folder.media.mkdir(exist_ok=True)
for step in itertools.count(first):
    tracker.journal.log_metrics(step, {"train/loss": ((step * 7919) % 1000 + incarnation / 8), "train/step": step})
    if step % 250 == 0:
        picture = tracker.folder.media / f"{step}.png"
        Image.new("L", (8, 8), step % 256).save(picture)
        tracker.log_image("samples", step, picture)
    time.sleep(0.001)
"""


@pytest.mark.usefixtures("outcomes")  # they wait beside it
@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, 8])
def test_a_process_killed_at_random_moments(server, home, new_run, kills):
    server.start()
    folder, drawn = new_run(tracking_uri=server.uri), random.Random(kills)
    first = 0
    for incarnation in range(kills):
        process = Forked(KILLED, folder.run_id, server.uri, str(first), str(incarnation))
        folder.journal.touch()
        before = folder.journal.stat().st_size
        while folder.journal.stat().st_size <= before:
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(drawn.uniform(0.3, kills / 2))
        process.kill()
        first = max(0, int(metric_history(folder)["train/loss"].steps[-1]) - drawn.randrange(200))
    assert sync(folder, server.uri, home, warn=pytest.fail) == 0

    history = metric_history(folder)
    steps = history["train/loss"].steps.tolist()
    assert len(steps) > 300 and steps == history["train/step"].steps.tolist() == list(
        range(len(steps))
    )
    client, run = stored_run(server.uri, folder)
    for key, points in sent_points(folder).items():
        stored = client.get_metric_history(run.info.run_id, key)
        assert sorted((p.step, p.value) for p in stored) == points
    assert [run.data.tags[f"incarnation.{number}"] for number in range(kills)] == ["begun"] * kills
    images = [file.path for file in client.list_artifacts(run.info.run_id, "images")]
    pictured = {*image_steps(images, ".png")}
    assert len(images) == 2 * len(pictured) + 2 and {*range(0, first, 250)} <= pictured


def sent_points(folder):
    """The points of the journal that thinning selects."""
    from ditlab.tracking.journal_writer import Thinning

    points = {}
    for key, series in metric_history(folder).items():
        thinning = Thinning(1000)
        points[key] = [
            p
            for p in zip(series.steps.tolist(), series.values.tolist(), strict=True)
            if thinning.selects()
        ]
    return points


HANGING = """
import sys, time
from pathlib import Path
from ditlab.home import Home
from ditlab.tracking.tracker import RunTracker
run_id, uri = sys.argv[1], sys.argv[2]
home = Home.from_environment()
tracker = RunTracker(home.run(run_id), uri, home, warn=lambda message: None)
tracker.start("digits-dit", "faults", "dit")
while tracker.mlflow_run_id is None:
    time.sleep(0.01)
time.sleep(1)
print("ready", flush=True)
sys.stdin.readline()
tree = tracker.folder.path / "tree"
tree.mkdir()
for name in "abcdefgh":
    (tree / name).write_text(name)
if sys.argv[3] == "files":
    tracker.log_artifact(tree, "tree")
tracker.journal.log_metrics(1, {"train/loss": 1.0})
time.sleep(1.5)
print(tracker.close(2), flush=True)
"""


@pytest.mark.slow
def test_a_server_that_hangs_holds_no_process(proxy, home, new_run):
    """Two processes at once: one that logs metrics, one that logs files."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HANGING, new_run().run_id, proxy.uri, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind in ("metrics", "files")
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    proxy.fault = "hang"
    begin = time.monotonic()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert int(process.stdout.readline()) > 0
        assert process.wait(60) == 0
    assert proxy.num_faulty > 1
    # Its sleep and its timeout, and an interpreter's end on a busy machine: less than the 15 s of a
    # request.
    assert time.monotonic() - begin < 3.5 + 10


def test_a_disk_that_is_full_for_a_while(home, tmp_path, mlflow_template):
    folder = home.run("1a2b3c4d")
    with small_disk(folder.path, "256k") as disk:
        shutil.copyfile(mlflow_template, tmp_path / "store.db")
        run = Logging(folder, f"sqlite:///{tmp_path}/store.db", home)
        run.steps(0, 100)
        disk.fill()
        for step in range(100, 3000):
            run.metrics(step)
        run.call(run.tracker.log_text, "none of this fits" * 1000, "note.txt")
        run.call(run.tracker.journal.sync)
        disk.make_room()
        run.steps(2900, 3300)
        assert run.tracker.close(40) == 0
        history = metric_history(folder)["train/loss"].steps.tolist()
        assert history[:100] == list(range(100)) and history[-400:] == list(range(2900, 3300))
        (warning,) = [each for each in run.said if f"{folder.journal} cannot be written" in each]
        assert warning == (
            f"{folder.journal} cannot be written (No space left on device): metrics are being "
            "lost, training goes on"
        )
        assert all(json.loads(line) for line in folder.journal.read_text().splitlines())
        points = Stored(run.tracker).points("train/loss")
        assert [step for step, _ in points] == history
        assert run.longest < LONGEST_CALL


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_costs_no_step_and_no_point(outcomes, scenario):
    outcomes[scenario].result()
