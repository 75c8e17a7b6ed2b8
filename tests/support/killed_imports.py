"""An import of photographs in a process of its own, to be killed: blocks of one or two images,
about 0.1 s each.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ditlab.api.imports import import_data
from ditlab.data import import_blocks
from ditlab.data.named_stores import pointed_folder
from ditlab.data.stores.bucketed_store import BucketedStore
from ditlab.data.stores.duplicates import REPEATS
from ditlab.spec.importing import ImagesOptions
from support.datasets.photographs import captioned_folder, encoded, smooth

BLOCK_BYTES = 30_000
OPTIONS: dict[str, Any] = {"resolution": 768, "patch": 16, "missing_caption": "skip", "name": "set"}
COUNTS = {"missing caption": 1, "unreadable": 1, REPEATS: 145}
"""Counts of the import's receipt; the 148 images are copies of three."""
_CODE = """
import json, sys
from pathlib import Path
from ditlab.data import import_blocks
from ditlab.api.imports import import_data
from ditlab.spec.importing import ImagesOptions

if __name__ == "__main__":
    source, out, address, block_bytes, options = sys.argv[1:]
    import_blocks.LEAST_BYTES = int(block_bytes)
    (imported,) = import_data("images", ImagesOptions(source=source, **json.loads(options)), Path(out), address or None)
    print(imported.store.fingerprint)
"""


def write_photographs(folder: Path) -> Path:
    """Write 150 photographs with captions, one of them damaged and one without a caption."""
    shapes = [(900, 1200), (1200, 900), (1000, 1000)]
    pictures = [encoded(smooth(*shape, seed), "JPEG") for seed, shape in enumerate(shapes)]
    files: dict[str, Any] = {f"{n:03d}.jpg": (pictures[n % 3], f"slope {n}") for n in range(150)}
    files["050.jpg"] = (pictures[0][:2000], "damaged")
    files["051.jpg"] = (pictures[0], None)
    return captioned_folder(folder, files)


def unbroken(source: Path, out: Path) -> BucketedStore:
    """Import in this process, without interruption."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_blocks, "LEAST_BYTES", BLOCK_BYTES)
        (imported,) = import_data(
            "images", ImagesOptions(source=source, processes=1, **OPTIONS), out
        )
    assert isinstance(imported.store, BucketedStore)
    return imported.store


class KilledImport:
    """Import of a source into `folder/stores`, which can be started again and again."""

    def __init__(self, source: Path, folder: Path, address: str = "", **environment: str) -> None:
        self.folder, self._environment = folder, environment
        script = folder / "driver.py"
        script.write_text(_CODE)  # a file: processes that are spawned import it
        options = OPTIONS | ({} if address else {"processes": 2})
        # relative to a folder that no process of the cluster works in
        arguments = [
            os.path.relpath(source, folder),
            "stores",
            address,
            str(BLOCK_BYTES),
            json.dumps(options),
        ]
        self._command = [sys.executable, str(script), *arguments]

    def start(self, **environment: str) -> "subprocess.Popen[str]":
        """Start the import in a group of processes of its own."""
        settings: Mapping[str, str] = {
            **os.environ,
            **self._environment,
            "DITLAB_HOME": str(self.folder / "home"),
        }
        return subprocess.Popen(
            self._command,
            env={**settings, **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=self.folder,
        )

    def receipts(self) -> int:
        """Return the number of blocks that are done."""
        return len(list((self.folder / "stores").glob(".importing/set/.partial-*/receipts/*.json")))

    def wait_for_progress(self, running: "subprocess.Popen[str]") -> None:
        """Return once one more block is done than before, or the import has ended."""
        before = self.receipts()
        while self.receipts() <= before and running.poll() is None:
            time.sleep(0.02)

    def check_end(self, expected: BucketedStore) -> None:
        """Start it once more, and check that it ends in the store of an import that nothing
        interrupts.
        """
        running = self.start()
        out, log = running.communicate(timeout=300)
        assert running.returncode == 0, log
        assert out.split()[-1] == expected.fingerprint
        folder = pointed_folder(self.folder / "stores" / "set")
        store = BucketedStore.open(folder)
        assert store.fingerprint == expected.fingerprint
        assert store.manifest.receipt == expected.manifest.receipt
        assert store.manifest.receipt.counts == COUNTS
        left = [*(self.folder / "stores").iterdir(), *folder.iterdir()]
        assert not [path for path in left if path.name.startswith(".")]
