"""Pictures of what people look at, from real servers: the MLflow UI, a run's page, a comparison, a
sweep.

    make screenshots
        # trains small runs into build/screenshots, then writes docs/images/screens
    python tests/browser/screenshots.py --home FOLDER --out FOLDER [--only NAME ...]

Runs that the home holds already are not trained again. Every page of DiTLab's own is also checked,
in both themes and at two widths: errors on the console, alternative texts, contrast, width of 400
pixels, anything loaded from elsewhere. The exit code is 1 where a page has a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

TESTS = Path(__file__).parents[1]
CHECKOUT = TESTS.parent
sys.path.append(str(TESTS))

from browser.mlflow_pages import CLOSED_ASSISTANT, WIDTH, mlflow_pages  # noqa: E402
from support.chromium import Theme, Visit, chromium, faults_of, visit  # noqa: E402

RUNS = {
    "digits-demo": ("experiments/digits/demo.yaml", "training.steps=300", "evaluation.every=100"),
    "digits-dit": ("experiments/digits/dit.yaml", "training.steps=200", "evaluation.every=100"),
    "digits-unet": ("experiments/digits/unet.yaml", "training.steps=150", "evaluation.every=75"),
}
"""Runs by name: their spec and what is changed, so that each takes a minute on two CPU cores."""
SWEEP = (
    "experiments/digits/sweep_schedule.yaml",
    "trials=6",
    "fixed.training.steps=60",
    "fixed.schedule.warmup=5",
)
SWEEP_NAME = "digits-schedule-quick"


def ditlab(home: Path, *arguments: str) -> dict[str, object]:
    """Run a command of DiTLab on a home; returns its JSON. Raises CalledProcessError where it
    fails.
    """
    done = subprocess.run(**_process(home, *arguments), check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def _process(home: Path, *arguments: str) -> dict[str, Any]:
    """Return the words that start a command."""
    return {
        "args": [sys.executable, "-m", "ditlab", *arguments, "--json"],
        "stdout": subprocess.PIPE,
        "text": True,
        "env": {**os.environ, "DITLAB_HOME": str(home)},
        "cwd": CHECKOUT,
    }


def train_missing(home: Path) -> dict[str, str]:
    """Train what the home lacks; returns run ids by name, with the sweep's under `sweep`."""
    found = _finished(home)
    for name, (spec, *changes) in RUNS.items():
        if name not in found:
            ditlab(home, "train", spec, "--local", *_sets(changes))
    if SWEEP_NAME not in found:
        spec, *changes = SWEEP
        ditlab(home, "tune", spec, "--quick", *_sets(changes))
    return _finished(home)


def _sets(changes: Sequence[str]) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def _finished(home: Path) -> dict[str, str]:
    rows = ditlab(home, "runs")["runs"]
    assert isinstance(rows, list)
    return {str(row["name"]): str(row["run_id"]) for row in rows if row["status"] == "finished"}


@contextmanager
def mlflow_server(home: Path, port: int) -> Iterator[dict[str, str]]:
    """`ditlab ui` on a home, ended at the end; yields its JSON."""
    with subprocess.Popen(**_process(home, "ui", "--port", str(port))) as server:
        assert server.stdout is not None
        try:
            yield json.loads(next(line for line in server.stdout if line.startswith("{")))
        finally:
            server.terminate()
            server.wait(60)


def save(one: Visit, path: Path, whole: bool = False) -> None:
    """Save a picture in 256 colours, a third of the size."""
    with Image.open(one.save(path, whole)) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB", *one.faults, sep="\n  ")


def own_pages(
    home: Path, runs: dict[str, str], folder: Path, wanted: Callable[[str], bool]
) -> dict[str, str]:
    """Addresses of DiTLab's own pages, in a folder: a run's, a comparison's, the sweep's."""
    pages = {
        "report": folder / "report.html",
        "comparison": folder / "comparison" / "comparison.html",
        "sweep": home / "train" / runs[SWEEP_NAME] / "report" / "report.html",
    }
    if wanted("report"):
        ditlab(home, "report", runs["digits-demo"], "--out", str(pages["report"]))
    if wanted("comparison"):
        pair = (runs["digits-dit"], runs["digits-unet"])
        ditlab(home, "compare", *pair, "--out", str(pages["comparison"].parent))
    return {name: path.as_uri() for name, path in pages.items() if wanted(name) and path.is_file()}


def main() -> int:
    """Write the pictures and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, default=CHECKOUT / "build" / "screenshots")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "docs" / "images" / "screens")
    parser.add_argument("--port", type=int, default=5077)
    parser.add_argument("--only", nargs="*", default=[])
    chosen = parser.parse_args()
    runs = train_missing(chosen.home)
    faults: list[str] = []

    def wanted(name: str) -> bool:
        return not chosen.only or name in chosen.only

    with chromium() as browser:
        themes: tuple[Theme, ...] = ("light", "dark")
        for name, address in own_pages(chosen.home, runs, chosen.home / "pages", wanted).items():
            for theme in themes:
                with visit(browser, address, theme=theme) as one:
                    save(one, chosen.out / f"{name}-{theme}.png")
            faults += [f"{name}: {fault}" for fault in faults_of(browser, address)]
        with mlflow_server(chosen.home, chosen.port) as server:
            for page in mlflow_pages(server, runs, SWEEP_NAME):
                if not wanted(page.name):
                    continue
                with visit(browser, page.address, WIDTH, script=CLOSED_ASSISTANT) as one:
                    page.prepare(one.page)
                    save(one, chosen.out / f"{page.name}.png")
    print(*faults, sep="\n", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
