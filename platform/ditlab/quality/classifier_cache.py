"""Cache of classifiers under `Home.classifiers`: one a data set and split, complete or absent."""

import fcntl
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from ditlab.data.splits import DataSplits
from ditlab.errors import UserError
from ditlab.home import Home, writable_folder
from ditlab.quality.classifier import VERSION, TrainedClassifier, train_classifier
from ditlab.quality.images import ImageFields, RealImages
from ditlab.quality.network import SmallClassifier
from ditlab.storage.files import sync_folder, write_durably

LOCK_POLL = 0.2  # seconds between attempts to lock a classifier that another process trains
WEIGHTS, RECORD = "weights.safetensors", "classifier.json"


@dataclass(frozen=True)
class _ClassifierRecord:
    """Content of `classifier.json`."""

    accuracy: float
    chance: float
    samples: int
    version: int


def cached_classifier(
    data: DataSplits, real: RealImages, fields: ImageFields, home: Home, tick: Callable[[], None]
) -> TrainedClassifier:
    """Return the data set's classifier, trained if there is none yet; of several processes that need it, one trains.

    `tick` is called while it is trained or waited for. Raises UserError where the folder cannot be written.
    """
    folder = home.classifiers / f"{_fingerprint(data, fields)}-{VERSION}"
    if found := _load(folder, fields):
        return found
    remedy = "free disk space there, or set DITLAB_HOME to another folder"
    writable_folder(home.classifiers, f"DITLAB_HOME={home.root}", remedy)
    try:
        with _locked(folder, tick):
            if found := _load(folder, fields):
                return found
            trained = train_classifier(real, fields, tick)
            with suppress(OSError, SafetensorError):  # a disk that is full now costs a second training, no run
                _save(folder, trained)
            return trained
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"DITLAB_HOME={home.root} cannot be written ({reason}); {remedy}.") from error


def _fingerprint(data: DataSplits, fields: ImageFields) -> str:
    """Hash the store's contents, the columns and the held-out rows, which together decide the classifier."""
    digest = hashlib.sha256(f"{data.fingerprint}/{data.held_out.store.fingerprint}/{fields}".encode())
    digest.update(data.train.rows.tobytes())
    digest.update(data.held_out.rows.tobytes())
    return digest.hexdigest()[:16]


def _load(folder: Path, fields: ImageFields) -> TrainedClassifier | None:
    """Load the classifier of a folder; None where it is missing or damaged."""
    try:
        record = _ClassifierRecord(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
        network = SmallClassifier(fields.shape, fields.num_classes, torch.Generator())
        network.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, TypeError, SafetensorError, RuntimeError):
        return None  # a damaged one is trained again
    return TrainedClassifier(network.requires_grad_(False).eval(), record.accuracy, record.chance, record.samples)


def _save(folder: Path, trained: TrainedClassifier) -> None:
    """Write both files into a temporary folder, and rename it."""
    for left in folder.parent.glob(f".{folder.name}-*"):  # by a process that was killed here: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    record = _ClassifierRecord(trained.accuracy, trained.chance, trained.samples, VERSION)
    files = {
        WEIGHTS: save(trained.network.state_dict()),
        RECORD: (json.dumps(asdict(record), indent=1) + "\n").encode(),
    }
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
        whole = Path(beside, folder.name)
        whole.mkdir()
        for name, content in files.items():
            write_durably(whole / name, content)
        if folder.exists():
            shutil.rmtree(folder)  # it was damaged, or it would have been used
        whole.rename(folder)
    sync_folder(folder.parent)


@contextmanager
def _locked(folder: Path, tick: Callable[[], None]) -> Iterator[None]:
    """Hold the classifier's lock, among the processes of one machine or of a file system with locks."""
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                tick()
                time.sleep(LOCK_POLL)
            except OSError:
                break  # a file system without locks
        yield
