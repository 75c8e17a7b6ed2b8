"""Pages of the MLflow UI that are worth a picture, with what is opened on each before it is
taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from mlflow import MlflowClient
from mlflow.entities import RunInfo
from playwright.sync_api import Page

from ditlab.tracking.names import MODEL_TRAINING, experiment_page

_QUIET = 3000
"""Milliseconds without a new answer after which a page stands, its charts drawn."""
_MOST_LOOKS = 40
WIDTH = 1600
"""Width of the window: a list's columns have room beside MLflow's navigation."""
CLOSED_ASSISTANT = """
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.assistant.panelOpen_v1", "false");
"""
"""MLflow 3.17 opens a panel of its assistant at the first visit; once closed, it stays closed."""


def settle(page: Page) -> None:
    """Wait until nothing more is loaded, for two minutes at most."""
    page.evaluate("performance.setResourceTimingBufferSize(100000)")  # the count would stop at 250
    loaded = -1
    for _ in range(_MOST_LOOKS):
        before, loaded = loaded, page.evaluate("performance.getEntriesByType('resource').length")
        if loaded == before:
            return
        page.wait_for_timeout(_QUIET)


def unfold_description(page: Page) -> None:
    """Show the whole note of a run."""
    settle(page)
    page.get_by_text("Show more").first.click()
    page.wait_for_timeout(_QUIET)


def unfold_trials(page: Page) -> None:
    """Show the trials of the newest sweep in the list of runs."""
    settle(page)
    # MLflow 3.17 gives the plus before a run's name no name
    page.locator(".ag-row button:has(svg)").first.click()
    settle(page)


def open_latest_samples(page: Page) -> None:
    """Show the newest samples among the artifacts of a run."""
    settle(page)
    page.get_by_text("samples", exact=True).first.click()
    page.get_by_text("latest.png").first.click()
    settle(page)


def show_image_cards(page: Page) -> None:
    """Show the cards of the newest samples and of those by step."""
    settle(page)
    page.locator("text=/^samples$/").last.scroll_into_view_if_needed()
    page.mouse.move(WIDTH * 2 / 3, 500)
    page.mouse.wheel(0, 330)
    settle(page)


@dataclass(frozen=True)
class MlflowPage:
    """A page and its preparation."""

    name: str
    address: str
    prepare: Callable[[Page], None] = settle


def mlflow_pages(
    server: Mapping[str, str], runs: Mapping[str, str], sweep: str
) -> Iterator[MlflowPage]:
    """Pages for the home of `tests/browser/screenshots.py`.

    `server` is the JSON of `ditlab ui`, `runs` holds ids by name, `sweep` is the name of a sweep
    among them.
    """
    url = server["url"]
    client = MlflowClient(url)
    of_run = {
        run.data.tags.get("ditlab.run", ""): run
        for experiment in client.search_experiments()
        for run in client.search_runs([experiment.experiment_id], max_results=1000)
    }
    found = {name: of_run[run_id].info for name, run_id in runs.items() if run_id in of_run}
    demo = found["digits-demo"]
    number = demo.experiment_id

    def of(run: RunInfo, tab: str = "") -> str:
        return f"{url}/#/experiments/{run.experiment_id}/runs/{run.run_id}{tab}?{MODEL_TRAINING}"

    yield MlflowPage("mlflow-trials", server["page"], unfold_trials)
    yield MlflowPage(
        "mlflow-images", f"{url}/{experiment_page(number, charts=True)}", show_image_cards
    )
    yield MlflowPage("mlflow-run", of(demo), unfold_description)
    yield MlflowPage("mlflow-metrics", of(demo, "/model-metrics"))
    yield MlflowPage("mlflow-samples", of(demo, "/artifacts"), open_latest_samples)
    yield MlflowPage("mlflow-sweep", of(found[sweep]), unfold_description)
    pair = [found["digits-dit"], found["digits-unet"]]
    ids = quote(json.dumps([info.run_id for info in pair]))
    experiments = quote(json.dumps(sorted({info.experiment_id for info in pair})))
    yield MlflowPage(
        "mlflow-compare",
        f"{url}/#/compare-runs?runs={ids}&experiments={experiments}&{MODEL_TRAINING}",
    )
    models = [
        model
        for model in client.search_logged_models([number])
        if model.source_run_id == demo.run_id
    ]
    yield MlflowPage(
        "mlflow-model", f"{url}/#/experiments/{number}/models/{models[0].model_id}?{MODEL_TRAINING}"
    )
