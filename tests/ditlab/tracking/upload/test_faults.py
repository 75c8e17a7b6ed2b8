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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from ditlab.cli.runs.commands import runs
from ditlab.home import Home, RunFolder
from ditlab.tracking.history import metric_history
from ditlab.tracking.records import create_run
from ditlab.tracking.tracker import RunTracker
from ditlab_addons.housekeeping.sync import sync
from support.forked import Forked
from support.proxy import Fault, Proxy

NewRun = Callable[..., RunFolder]
LONGEST_CALL = 1.0
"""Seconds. A call takes 20 microseconds; a machine that is busy may stretch one, a call that waits
for MLflow takes two seconds and more in these tests."""


class Logging:
    """Calls of a training loop to the tracker, which keeps the longest time that one took."""

    def __init__(self, folder: RunFolder, uri: str, home: Home) -> None:
        self.said: list[str] = []
        self.tracker = RunTracker(folder, uri, home, warn=self.said.append)
        self.longest = 0.0
        self.call(self.tracker.start, "digits-dit", "faults", "dit", {"depth": "9"})

    def call(self, log: Callable[..., None], *arguments: Any) -> None:
        begin = time.perf_counter()
        log(*arguments)
        self.longest = max(self.longest, time.perf_counter() - begin)

    def steps(self, first: int, end: int, seconds: float = 0.0) -> None:
        """Log steps `first` to `end` - 1 over about `seconds`, with a picture and a tag at every
        hundredth.
        """
        for step in range(first, end):
            self.call(
                self.tracker.journal.log_metrics,
                step,
                {"train/loss": 1 / (step + 1), "train/lr": 1e-4},
            )
            if step % 100 == 0:
                picture = self.tracker.folder.media / f"{step}.png"
                picture.parent.mkdir(exist_ok=True)
                Image.new("L", (8, 8), step % 256).save(picture)
                self.call(self.tracker.log_image, "samples", step, picture)
                self.call(self.tracker.set_tags, {"at": str(step)})
            time.sleep(seconds / (end - first))


def check_all_arrived(uri: str, folder: RunFolder, steps: int) -> None:
    """MLflow must have one run, with every step of `Logging.steps` once."""
    import mlflow

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("faults")
    found = client.search_runs([experiment.experiment_id], f"tags.`ditlab.run` = '{folder.run_id}'")
    assert len(found) == 1
    run = found[0]
    points = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((p.step, p.value) for p in points) == [
        (step, 1 / (step + 1)) for step in range(steps)
    ]
    assert len(client.get_metric_history(run.info.run_id, "train/lr")) == steps
    assert run.data.tags["at"] == str((steps - 1) // 100 * 100) and run.data.params == {
        "depth": "9"
    }
    images = [file.path for file in client.list_artifacts(run.info.run_id, "images")]
    assert (
        sorted(image_steps(images, ".png"))
        == sorted(image_steps(images, ".webp"))
        == list(range(0, steps, 100))
    )


def image_steps(paths: list[str], ending: str) -> list[int]:
    """Steps of the history's pictures; the newest one is another card's."""
    return [
        int(re.findall(r"\+step\+(\d+)\+", path)[0])
        for path in paths
        if "~steps+" in path and path.endswith(ending)
    ]


@pytest.fixture
def proxy(server: Any) -> Iterator[Proxy]:
    server.start()
    with Proxy(server.uri) as proxy:
        yield proxy


Scenario = Callable[[Proxy, Home, RunFolder], None]


def faults_for_a_while(fault: Fault, when: str) -> Scenario:
    def check(proxy: Proxy, home: Home, folder: RunFolder) -> None:
        proxy.fault = fault if when == "first" else "none"
        run = Logging(folder, proxy.uri, home)
        run.steps(0, 100)
        while when == "later" and run.tracker.mlflow_run_id is None:
            time.sleep(0.05)
        proxy.fault = fault
        run.steps(100, 300, seconds=2.5)
        while not proxy.num_faulty:
            time.sleep(0.05)
        proxy.fault = "none"
        run.steps(300, 400)
        run.call(run.tracker.end, "finished")
        assert run.tracker.close(60) == 0
        assert run.longest < LONGEST_CALL
        check_all_arrived(proxy.uri, folder, 400)

    return check


def lost_answers(only: str) -> Scenario:
    """The server did its part; the same request again must change nothing."""

    def check(proxy: Proxy, home: Home, folder: RunFolder) -> None:
        proxy.fault, proxy.only = "swallow", only
        run = Logging(folder, proxy.uri, home)
        run.steps(0, 200)
        deadline = time.monotonic() + 60
        while proxy.num_faulty < 2:  # MLflow's client sends a request twice
            assert time.monotonic() < deadline
            time.sleep(0.05)
        proxy.fault = "none"
        assert run.tracker.close(60) == 0
        check_all_arrived(proxy.uri, folder, 200)

    return check


def slow_requests(delay: float) -> Scenario:
    def check(proxy: Proxy, home: Home, folder: RunFolder) -> None:
        proxy.delay = delay
        run = Logging(folder, proxy.uri, home)
        run.steps(0, 500, seconds=3 * delay)
        proxy.delay = 0
        assert run.tracker.close(60) == 0
        assert run.longest < LONGEST_CALL
        check_all_arrived(proxy.uri, folder, 500)

    return check


SCENARIOS = {
    **{
        f"{fault} {when}": faults_for_a_while(fault, when)
        for fault in ("500", "drop")
        for when in ("first", "later")
    },
    **{
        f"lost {only}": lost_answers(only)
        for only in ("runs/create", "runs/log-batch", "PUT ", "runs/set-tag")
    },
    "slow": slow_requests(2.0),
}


@pytest.fixture(scope="module")
def outcomes(
    server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """Every scenario, five at a time: each is a run with a proxy of its own, and mostly waits,
    beside other tests.
    """
    server.start()
    home = Home(tmp_path_factory.mktemp("faults")).ensure()

    def play(scenario: Scenario) -> None:
        with Proxy(server.uri) as proxy:
            folder = create_run(
                home, "digits-dit", family="dit", spec_hash="abc", tracking_uri=proxy.uri
            )
            scenario(proxy, home, folder)

    with ThreadPoolExecutor(5) as pool:
        yield {name: pool.submit(play, scenario) for name, scenario in SCENARIOS.items()}


@pytest.mark.slow
def test_requests_that_are_slower_still(proxy: Proxy, home: Home, new_run: NewRun) -> None:
    slow_requests(5.0)(proxy, home, new_run(tracking_uri=proxy.uri))


@pytest.mark.slow
def test_killed_in_the_middle_and_down_at_the_end(server: Any, home: Home, new_run: NewRun) -> None:
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
    done = CliRunner().invoke(runs, ["sync", "--json"], catch_exceptions=False)
    (synced,) = json.loads(done.stdout.splitlines()[-1])["synced"]
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
@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_a_process_killed_at_random_moments(
    server: Any, home: Home, new_run: NewRun, kills: int
) -> None:
    import mlflow

    server.start()
    folder, draw = new_run(tracking_uri=server.uri), random.Random(kills)
    first = 0
    for incarnation in range(kills):
        process = Forked(KILLED, folder.run_id, server.uri, str(first), str(incarnation))
        before = folder.journal.stat().st_size if folder.journal.exists() else 0
        while not folder.journal.exists() or folder.journal.stat().st_size <= before:
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(draw.uniform(0.3, kills / 2))
        process.kill()
        first = max(0, int(metric_history(folder)["train/loss"].steps[-1]) - draw.randrange(200))
    assert sync(folder, server.uri, home, warn=pytest.fail) == 0

    history = metric_history(folder)
    steps = history["train/loss"].steps.tolist()
    assert len(steps) > 300 and steps == history["train/step"].steps.tolist() == list(
        range(len(steps))
    )
    client = mlflow.MlflowClient(server.uri)
    experiment = client.get_experiment_by_name("faults").experiment_id
    (run,) = client.search_runs([experiment], f"tags.`ditlab.run` = '{folder.run_id}'")
    for key, points in sent_points(folder).items():
        stored = client.get_metric_history(run.info.run_id, key)
        assert sorted((p.step, p.value) for p in stored) == points
    assert [run.data.tags[f"incarnation.{number}"] for number in range(kills)] == ["begun"] * kills
    images = [file.path for file in client.list_artifacts(run.info.run_id, "images")]
    pictured = {*image_steps(images, ".png")}
    assert len(images) == 2 * len(pictured) + 2 and {*range(0, first, 250)} <= pictured


def sent_points(folder: RunFolder) -> Mapping[str, list[tuple[int, float]]]:
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
def test_a_server_that_hangs_holds_no_process(proxy: Proxy, home: Home, new_run: NewRun) -> None:
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
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    proxy.fault = "hang"
    begin = time.monotonic()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout is not None and int(process.stdout.readline()) > 0
        assert process.wait(60) == 0
    assert proxy.num_faulty > 1
    # Its sleep and its timeout, and an interpreter's end on a busy machine: less than the 15 s of a
    # request.
    assert time.monotonic() - begin < 3.5 + 10


def test_a_disk_that_is_full_for_a_while(
    home: Home, new_run: NewRun, tmp_path: Path, mlflow_template: Path
) -> None:
    folder = new_run()
    small = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder.path],
        check=False,
        capture_output=True,
    )
    if small.returncode:
        pytest.skip("a file system of its own cannot be mounted here")
    try:
        shutil.copyfile(mlflow_template, tmp_path / "store.db")
        run = Logging(folder, f"sqlite:///{tmp_path}/store.db", home)
        run.steps(0, 100)
        filler = folder.path / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(b"x" * 512)
        for step in range(100, 3000):
            run.call(
                run.tracker.journal.log_metrics,
                step,
                {"train/loss": 1 / (step + 1), "train/lr": 1e-4},
            )
        run.call(run.tracker.log_text, "none of this fits" * 1000, "note.txt")
        run.call(run.tracker.journal.sync)
        filler.unlink()
        run.steps(2900, 3300)
        assert run.tracker.close(40) == 0
        history = metric_history(folder)["train/loss"].steps.tolist()
        assert history[:100] == list(range(100)) and history[-400:] == list(range(2900, 3300))
        assert [
            message for message in run.said if f"{folder.journal} cannot be written" in message
        ] == [
            (
                f"{folder.journal} cannot be written (No space left on device): metrics are "
                "being lost, training goes on"
            )
        ]
        assert all(json.loads(line) for line in folder.journal.read_text().splitlines())
        import mlflow

        client = mlflow.MlflowClient(run.tracker.uri)
        stored = client.get_metric_history(run.tracker.mlflow_run_id, "train/loss")
        assert sorted(point.step for point in stored) == history
        assert run.longest < LONGEST_CALL
    finally:
        subprocess.run(["umount", "-l", folder.path], check=True)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_costs_no_step_and_no_point(
    outcomes: dict[str, Future[None]], scenario: str
) -> None:
    outcomes[scenario].result()
