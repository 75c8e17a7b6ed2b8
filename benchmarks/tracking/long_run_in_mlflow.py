"""Seconds in which MLflow's UI opens a long run: its page, its charts and its experiment, in
headless Chromium

    python benchmarks/tracking/long_run_in_mlflow.py [--steps 100000] [--rounds 3] [--home
        FOLDER]

A run of so many steps is tracked as training tracks it, six metrics a step, an evaluation every
1,000, and sent to the database of a home, which `ditlab ui` then serves. Each round opens each page
in a browser without a cache, from the address to the moment at which its content stands: the note
and the table of metrics, six drawn charts, the row of the list. Medians, and the slowest; nothing
is asserted here.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from mlflow import MlflowClient
from playwright.sync_api import Page

from benchmarks.rounds import Measured, report
from ditlab.home import Home
from ditlab.tracking.history import MAIN_TAG
from ditlab.tracking.names import MODEL_TRAINING
from ditlab.tracking.records import create_run
from ditlab.tracking.review import end_run, log_overview, renew_note
from ditlab.tracking.tracker import RunTracker
from support.chromium import chromium, visit
from support.served import served

BUDGET = 10_000
"""The default of `tracking.budget`."""
PROMISED = 3.0
"""Seconds within which a page of a run of 100,000 steps opens."""


def track(home: Home, num_steps: int) -> str:
    """Track a run; returns MLflow's id of it."""
    folder = create_run(home, "long", family="dit", spec_hash="", total_steps=num_steps)
    tracker = RunTracker(folder, None, home, budget=BUDGET)
    parameters = {f"part.field_{number}": str(number) for number in range(100)} | {
        "parameters.total": "2238340"
    }
    tracker.start("long", "benchmark", "dit", parameters, {MAIN_TAG: "eval/velocity"})
    names = ("loss", "velocity", "grad_norm", "lr", "samples_per_second", "skipped")
    for step in range(num_steps + 1):
        loss = 1 / math.sqrt(step + 1) + 0.01 * math.sin(step * 12.9898)
        values = (
            loss,
            loss,
            abs(math.sin(step)),
            1e-4 * (1 - step / num_steps),
            1400 + math.cos(step),
            0.0,
        )
        tracker.journal.log_metrics(
            step, {f"train/{name}": value for name, value in zip(names, values, strict=True)}
        )
        if step % 1000 == 0:
            tracker.journal.log_metrics(step, {"eval/velocity": loss})
            log_overview(tracker, step)
    renew_note(tracker)
    end_run(tracker, "finished")
    left = tracker.close(600)
    assert left == 0 and tracker.mlflow_run_id, f"{left} records have not arrived"
    return tracker.mlflow_run_id


def note_and_metrics(page: Page) -> None:
    page.get_by_text("a dit of 2,238,340 parameters").first.wait_for(timeout=60_000)
    page.get_by_text("train/loss").first.wait_for(timeout=60_000)


def drawn_charts(page: Page) -> None:
    page.wait_for_function(
        "document.querySelectorAll('.js-plotly-plot .scatterlayer path.js-line').length >= 2"
    )


def row_of_the_list(page: Page) -> None:
    page.get_by_role("link", name="long").first.wait_for(timeout=60_000)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--home", type=Path)
    chosen = parser.parse_args()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with tempfile.TemporaryDirectory() as folder:
        home = Home(chosen.home or Path(folder, "home")).ensure()
        began = time.perf_counter()
        run_id = track(home, chosen.steps)
        client = MlflowClient(f"sqlite:///{home.mlflow_database}")
        num = len(client.get_metric_history(run_id, "train/loss"))
        print(
            f"{chosen.steps} steps tracked in {time.perf_counter() - began:.1f} s; {num} "
            "points of train/loss in MLflow"
        )
        experiment = client.get_run(run_id).info.experiment_id
        with served(home.root, log=Path(folder, "ui.log")) as server, chromium() as browser:
            run = f"{server.url}/#/experiments/{experiment}/runs/{run_id}"
            pages: dict[str, tuple[str, Callable[[Page], None]]] = {
                "run": (f"{run}?{MODEL_TRAINING}", note_and_metrics),
                "charts": (f"{run}/model-metrics?{MODEL_TRAINING}", drawn_charts),
                "list": (server.page, row_of_the_list),
            }
            medians = []
            for name, (address, wait) in pages.items():
                seconds = []
                for _ in range(chosen.rounds):
                    began = time.perf_counter()
                    with visit(browser, address) as one:
                        wait(one.page)
                        seconds.append(time.perf_counter() - began)
                medians.append(statistics.median(seconds))
                print(
                    f"{name}: {medians[-1]:.2f} s (median of {len(seconds)}, slowest "
                    f"{max(seconds):.2f})"
                )
            report(
                f"slowest page's median over {PROMISED:g} s",
                [max(medians) / PROMISED],
                Measured(max(medians)),
            )


if __name__ == "__main__":
    main()
