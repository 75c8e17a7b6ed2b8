"""An import on the nodes of a cluster, in a process of its own that can be killed."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.clusters.faults import wait_until
from support.clusters.nodes import RayNodes

_DRIVER = """
import importlib, json, sys
from pathlib import Path
from ditlab.api.imports import import_data
from ditlab.spec.importing import TextOptions
from ditlab_addons.genome.options import GetOptions

if __name__ == "__main__":
    kind, source, out, address, limits, options = sys.argv[1:]
    for place, value in json.loads(limits).items():
        module, _, name = place.rpartition(".")
        setattr(importlib.import_module(module), name, value)
    parsed = {"get": GetOptions, "text": TextOptions}[kind](source=source, **json.loads(options))
    (imported,) = import_data(kind, parsed, Path(out), address)
    print(imported.store.fingerprint)
"""


class ImportOnNodes:
    """Import of a source into `folder/stores`; `limits` are set in its process, values by their
    dotted names.
    """

    def __init__(
        self,
        kind: str,
        source: str,
        folder: Path,
        nodes: RayNodes,
        limits: Mapping[str, int],
        options: Mapping[str, Any],
    ) -> None:
        self._stores = folder / "stores"
        driver = folder / "driver.py"
        driver.write_text(_DRIVER)  # a file: processes that are spawned import it
        place = (kind, source, str(self._stores), nodes.address)
        self._command = [
            sys.executable,
            str(driver),
            *place,
            json.dumps(limits),
            json.dumps(options),
        ]
        self._environment = {**os.environ, **nodes.access, "DITLAB_HOME": str(folder / "home")}

    def _start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _receipts(self) -> int:
        return len(list(self._stores.glob(".importing/*/.partial-*/receipts/*.json")))

    def kill(self) -> None:
        """Start it, and kill it at a random moment after one more block."""
        before, running = self._receipts(), self._start()
        wait_until(
            lambda: self._receipts() > before or running.poll() is not None, 120, "one more block"
        )
        time.sleep(random.uniform(0, 0.03))
        assert running.poll() is None, "it ended before it was killed"
        assert self._receipts(), "whole blocks stay"
        running.kill()
        running.communicate()

    def end(self) -> str:
        """Let it end; returns the store's fingerprint."""
        running = self._start()
        printed, _ = running.communicate(timeout=300)
        assert running.returncode == 0
        assert not [path for path in self._stores.rglob("*") if path.name.startswith(".")]
        return printed.split()[-1]
