"""Cache of classifiers under `Home.classifiers`: one a data set and split, complete or absent."""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import ConfigDict, Field, TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load, save

from ditlab.data.splits import DataSplits
from ditlab.errors import UserError
from ditlab.home import Home, writable_folder
from ditlab.quality.classifier import VERSION, TrainedClassifier, train_classifier
from ditlab.quality.images import ImageFields, RealImages
from ditlab.quality.network import SmallClassifier
from ditlab.storage.files import encode_json_line, parse_json_line, sync_folder, write_durably
from ditlab.storage.plain_files import MIB, open_for_append, read_plain

LOCK_POLL = 0.2  # seconds between attempts to lock a classifier that another process trains
MAX_WEIGHTS = 256 * MIB  # of a network of some 100 KB
WEIGHTS, RECORD = "weights.safetensors", "classifier.json"

Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Natural = Annotated[int, Field(strict=True, ge=0)]


@dataclass(frozen=True)
class _ClassifierRecord:
    """Content of `classifier.json`."""

    accuracy: Share
    chance: Share
    samples: Natural
    version: Natural
    weights_sha256: str | None = None
    """Hash of the file of weights; None in a record of version 0.1, which has no checksum either."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


_RECORD: TypeAdapter[_ClassifierRecord] = TypeAdapter(_ClassifierRecord)


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
    digest.update(data.train.rows_key)
    digest.update(data.held_out.rows_key)
    return digest.hexdigest()[:16]


def _load(folder: Path, fields: ImageFields) -> TrainedClassifier | None:
    """Load the classifier of a folder; None where it is missing or damaged."""
    try:
        record = _RECORD.validate_python(parse_json_line(read_plain(folder / RECORD, MIB)))
        weights = read_plain(folder / WEIGHTS, MAX_WEIGHTS)
        if record.weights_sha256 not in (None, hashlib.sha256(weights).hexdigest()):
            return None
        network = SmallClassifier(fields.shape, fields.num_classes, torch.Generator())
        network.load_state_dict(load(weights))
    except (OSError, ValueError, SafetensorError, RuntimeError):
        return None  # a damaged one is trained again
    return TrainedClassifier(network.requires_grad_(False).eval(), record.accuracy, record.chance, record.samples)


def _save(folder: Path, trained: TrainedClassifier) -> None:
    """Write both files into a temporary folder, and rename it."""
    for left in folder.parent.glob(f".{folder.name}-*"):  # by a process that was killed here: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    weights = save(trained.network.state_dict())
    digest = hashlib.sha256(weights).hexdigest()
    record = _ClassifierRecord(trained.accuracy, trained.chance, trained.samples, VERSION, digest)
    files = {WEIGHTS: weights, RECORD: encode_json_line(asdict(record))}
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
        whole = Path(beside, folder.name)
        whole.mkdir()
        for name, content in files.items():
            write_durably(whole / name, content)
        _remove(folder)  # it was damaged, or it would have been used
        whole.rename(folder)
    sync_folder(folder.parent)


def _remove(path: Path) -> None:
    """Delete a folder, or whatever lies in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path, tick: Callable[[], None]) -> Iterator[None]:
    """Hold the classifier's lock, among the processes of one machine or of a file system with locks."""
    with os.fdopen(open_for_append(folder.parent / f"{folder.name}.lock")) as lock:
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
