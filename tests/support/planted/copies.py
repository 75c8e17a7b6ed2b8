"""Copies of the code with a fault in them, and `ditlab` run from each."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.command import Said
from support.planted.faults import Fault

CHECKOUT = Path(__file__).parents[3]
SOURCES = ("platform", "models")


class Copies:
    """Copies of the sources, each of which a warm process runs commands from."""

    def __init__(self, folder: Path, server: Any) -> None:
        self._folder, self._server, self._num = folder, server, 0
        self._clean = folder / "clean"
        for source in SOURCES:
            shutil.copytree(
                CHECKOUT / source, self._clean / source, ignore=shutil.ignore_patterns("*.egg-info")
            )

    def copy(self, fault: Fault | None) -> Path:
        """Return a copy of the code with a fault; None: as it is."""
        if fault is None:
            return self._clean
        copy = self._folder / f"copy-{self._num}"
        shutil.copytree(self._clean, copy, copy_function=os.link)
        for change in fault.replacements:
            file = copy / change.file
            text = file.read_text(encoding="utf-8")
            assert text.count(change.old) == 1, (
                f"{change.file} holds {text.count(change.old)} times {change.old!r}"
            )
            file.unlink()  # the link, not the file that other copies share
            file.write_text(text.replace(change.old, change.new), encoding="utf-8")
        return copy

    def run(self, fault: Fault | None, spec: str, arguments: Sequence[str]) -> Said:
        """Run `ditlab ARGUMENTS` in a new folder that holds `spec.yaml`, from a copy with a
        fault.
        """
        copy = self.copy(fault)
        work = self._folder / f"work-{self._num}"
        self._num += 1
        work.mkdir()
        (work / "spec.yaml").write_text(spec, encoding="utf-8")
        job = {
            "sources": [str(copy / source) for source in SOURCES],
            "folder": str(work),
            "arguments": [*arguments],
        }
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        answer = Said(**json.loads(self._server.stdout.readline()))
        shutil.rmtree(work)
        if fault is not None:
            shutil.rmtree(copy)
        return answer


@contextmanager
def copies(folder: Path) -> Iterator[Copies]:
    """Start the server of warm processes; it ends with the body."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("warm_server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield Copies(folder, server)
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(30)
