"""The classifier of a data set: trained once, kept under `Home.classifiers`, whole or not at all."""

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
from ditlab.quality.classifier import VERSION, Trained, train_classifier
from ditlab.quality.images import ImageFields, RealImages
from ditlab.quality.network import SmallClassifier
from ditlab.storage.files import sync_folder, write_durably

WAIT = 0.2  # seconds between looks whether another process is done
WEIGHTS, RECORD = "weights.safetensors", "classifier.json"


@dataclass(frozen=True)
class _Record:
    """What `classifier.json` says."""

    accuracy: float
    chance: float
    samples: int
    version: int


def classifier_of(
    data: DataSplits, real: RealImages, fields: ImageFields, home: Home, beat: Callable[[], None]
) -> Trained:
    """The data set's classifier, trained where there is none yet; of several processes that need it, one trains.

    `beat` is called while it is trained or waited for. Raises UserError where the folder cannot be written.
    """
    folder = home.classifiers / f"{_fingerprint(data, fields)}-{VERSION}"
    if found := _load(folder, fields):
        return found
    remedy = "make room there, or point DITLAB_HOME at another folder"
    writable_folder(home.classifiers, f"DITLAB_HOME={home.root}", remedy)
    try:
        with _one_at_a_time(folder, beat):
            if found := _load(folder, fields):
                return found
            trained = train_classifier(real, fields, beat)
            with suppress(OSError, SafetensorError):  # a disk that is full now costs a second training, no run
                _keep(folder, trained)
            return trained
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"DITLAB_HOME={home.root} cannot be written ({reason}); {remedy}.") from error


def _fingerprint(data: DataSplits, fields: ImageFields) -> str:
    """Of what it learns from and is tested on: the store's contents, the columns, and which rows are held out."""
    digest = hashlib.sha256(f"{data.fingerprint}/{data.held_out.store.fingerprint}/{fields}".encode())
    digest.update(data.train.rows.tobytes())
    digest.update(data.held_out.rows.tobytes())
    return digest.hexdigest()[:16]


def _load(folder: Path, fields: ImageFields) -> Trained | None:
    """What lies in the folder; None where nothing whole does."""
    try:
        record = _Record(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
        network = SmallClassifier(fields.shape, fields.num_classes, torch.Generator())
        network.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, TypeError, SafetensorError, RuntimeError):
        return None  # an altered one is made again
    return Trained(network.requires_grad_(False).eval(), record.accuracy, record.chance, record.samples)


def _keep(folder: Path, trained: Trained) -> None:
    """Both files in a folder beside, which then takes the name."""
    for left in folder.parent.glob(f".{folder.name}-*"):  # by a process that was killed here: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    record = _Record(trained.accuracy, trained.chance, trained.samples, VERSION)
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
            shutil.rmtree(folder)  # it was altered, or it would have been used
        whole.rename(folder)
    sync_folder(folder.parent)


@contextmanager
def _one_at_a_time(folder: Path, beat: Callable[[], None]) -> Iterator[None]:
    """Exclusive among the processes of one machine, or of all that share a file system with locks."""
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                beat()
                time.sleep(WAIT)
            except OSError:
                break  # a file system without locks
        yield
