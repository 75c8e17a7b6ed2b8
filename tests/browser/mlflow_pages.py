"""Pages of the MLflow UI that are worth a picture, with what is opened on each before it is taken."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from mlflow import MlflowClient
from playwright.sync_api import Page

_SETTLED = 3000
"""Milliseconds that charts take to be drawn once their data have come."""


def settle(page: Page) -> None:
    """Wait until nothing is loaded and the charts stand."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(_SETTLED)


@dataclass(frozen=True)
class MlflowPage:
    """A page and its preparation."""

    name: str
    address: str
    prepare: Callable[[Page], None] = settle


def mlflow_pages(server: Mapping[str, str], runs: Mapping[str, str]) -> Iterator[MlflowPage]:
    """Pages for the home of `tests/browser/screenshots.py`: `server` is the JSON of `ditlab ui`, `runs` ids by name."""
    client = MlflowClient(server["url"])
    of_run = {
        run.data.tags.get("ditlab.run", ""): run
        for experiment in client.search_experiments()
        for run in client.search_runs([experiment.experiment_id], max_results=1000)
    }
    found = {name: of_run[run_id].info for name, run_id in runs.items() if run_id in of_run}
    demo = found["digits-demo"]
    one = f"{server['url']}/#/experiments/{demo.experiment_id}"
    yield MlflowPage("mlflow-list", server["page"])
    yield MlflowPage("mlflow-run", f"{one}/runs/{demo.run_id}")
    yield MlflowPage("mlflow-metrics", f"{one}/runs/{demo.run_id}/model-metrics")
    yield MlflowPage("mlflow-samples", f"{one}/runs/{demo.run_id}/artifacts")
    pair = [found["digits-dit"], found["digits-unet"]]
    ids = quote(json.dumps([info.run_id for info in pair]))
    experiments = quote(json.dumps(sorted({info.experiment_id for info in pair})))
    yield MlflowPage("mlflow-compare", f"{server['url']}/#/compare-runs?runs={ids}&experiments={experiments}")
    if sweep := found.get("digits-schedule-quick"):
        yield MlflowPage("mlflow-sweep", f"{server['url']}/#/experiments/{sweep.experiment_id}/runs/{sweep.run_id}")
    models = client.search_logged_models([demo.experiment_id])
    if models:
        yield MlflowPage("mlflow-model", f"{one}/models/{models[0].model_id}")
