"""Small convolutional classifier whose features images are compared by: its training, and its
cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ditlab.data.splits import DataSplits
from ditlab.errors import cannot_write
from ditlab.home import Home
from ditlab.inputs.noise import derived_seed
from ditlab.quality.images import ImageFields, RealImages, batches
from ditlab.quality.measurement import weights_digest
from ditlab.storage.files import take_lock, write_durably
from ditlab.storage.local import writable_folder
from ditlab.storage.plain_files import MIB, check_plain, open_for_append

FEATURES = 64
"""Features of an image."""
WIDTHS = (16, 32, 64, 64, 64)
"""Channels after each halving of the image."""
SMALLEST = 4  # pixels; halving stops there
VERSION = 1
"""Version of everything that decides the weights: numbers of two versions do not compare."""
LARGEST_FILE = 64 * MIB
"""Most bytes of a classifier's file: images of 64 pixels a side and 1,000 classes give 0.9 MiB."""
STEPS = 1000
BATCH = 64
RATE = 2e-3
CPU = torch.device("cpu")
LOCK_POLL = 0.2  # seconds between attempts to lock a classifier that another process trains


class SmallClassifier(nn.Module):
    """Convolutions that halve the image to 4 pixels a side, 64 features, class scores; `generator`
    draws weights.
    """

    scale: Tensor

    def __init__(
        self, image_shape: tuple[int, int, int], num_classes: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        channels, height, width = image_shape

        def convolution(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
            layer = nn.utils.skip_init(nn.Conv2d, inputs, outputs, 3, stride=stride, padding=1)
            return [layer, nn.GroupNorm(8, outputs), nn.SiLU()]

        layers = convolution(channels, WIDTHS[0], stride=1)
        number = 0
        while min(height, width) > SMALLEST:
            layers += convolution(WIDTHS[number], WIDTHS[number + 1], stride=2)
            height = -(-height // 2)
            width = -(-width // 2)
            number = number + 1
        self.body = nn.Sequential(
            *layers,
            nn.Flatten(),
            nn.utils.skip_init(nn.Linear, WIDTHS[number] * height * width, FEATURES),
        )
        self.head = nn.utils.skip_init(nn.Linear, FEATURES, num_classes)
        self.register_buffer("scale", torch.ones(()))
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def features(self, images: Tensor) -> Tensor:
        """Return features, (num, 64), whose mean square over real images is 1."""
        return nn.functional.silu(self.body(images)) * self.scale

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, (num, classes)."""
        return self.head(nn.functional.silu(self.body(images)))


@dataclass(frozen=True)
class TrainedClassifier:
    """Trained classifier with its accuracy on held-out images."""

    network: SmallClassifier
    accuracy: float
    """Share of held-out images that are classified correctly."""
    chance: float
    """Share of held-out images in their largest class: the accuracy of a constant answer."""
    samples: int
    """Number of training images."""


def train_classifier(
    real: RealImages, fields: ImageFields, tick: Callable[[], None]
) -> TrainedClassifier:
    """Train a thousand steps of AdamW, reproducible to the bit on one CPU thread. Calls `tick`
    after each step.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.enable_grad():
            images, labels = map(torch.cat, zip(*batches(real.fit, fields, CPU), strict=True))
            generator = torch.Generator().manual_seed(derived_seed("quality", VERSION))
            network = SmallClassifier(fields.shape, fields.num_classes, generator)
            optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.05)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS)
            for _ in range(STEPS):
                picked = torch.randint(len(images), (BATCH,), generator=generator)
                loss = nn.functional.cross_entropy(network(images[picked]), labels[picked])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                tick()
            network.requires_grad_(False).eval()
            features = torch.cat(
                [network.features(images) for images, _ in batches(real.reference, fields, CPU)]
            )
            network.scale = (features.square().mean() + 1e-12).rsqrt()
            right = 0
            counts = torch.zeros(fields.num_classes, dtype=torch.int64)
            for images, labels in batches(real.held_out, fields, CPU):
                right += int((network(images).argmax(1) == labels).sum())
                counts += labels.bincount(minlength=fields.num_classes)
    finally:
        torch.set_num_threads(threads)
    num = len(real.held_out)
    return TrainedClassifier(network, right / num, float(counts.max()) / num, len(real.fit))


def cached_classifier(
    data: DataSplits, real: RealImages, fields: ImageFields, home: Home, tick: Callable[[], None]
) -> TrainedClassifier:
    """Return the data set's classifier, trained by one process if there is none; calls `tick` while
    it trains or waits.

    Raises UserError where the folder cannot be written.
    """
    digest = hashlib.sha256(
        f"{data.fingerprint}/{data.held_out.store.fingerprint}/{fields}".encode()
    )
    digest.update(data.train.rows_key)
    digest.update(data.held_out.rows_key)
    path = home.classifiers / f"{digest.hexdigest()[:16]}-{VERSION}.safetensors"
    found = _load(path, fields)
    if found:
        return found
    remedy = "set DITLAB_HOME to another folder"
    writable_folder(home.classifiers, f"DITLAB_HOME={home.root}", remedy)
    try:
        with os.fdopen(open_for_append(path.with_suffix(".lock"))) as lock:
            while not take_lock(lock):
                tick()
                time.sleep(LOCK_POLL)
            found = _load(path, fields)
            if found:
                return found
            trained = train_classifier(real, fields, tick)
            # a disk that is full now costs a second training, no run
            with suppress(OSError, SafetensorError):
                _save(path, trained)
            return trained
    except OSError as error:
        raise cannot_write(f"DITLAB_HOME={home.root}", error, remedy) from error


def _load(path: Path, fields: ImageFields) -> TrainedClassifier | None:
    """Load a kept classifier; None where it is missing or damaged: a damaged one is trained
    again.
    """
    try:
        with safe_open(check_plain(path, LARGEST_FILE), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("sha256") != _digest(tensors, metadata["record"]):
            return None
        network = SmallClassifier(fields.shape, fields.num_classes, torch.Generator())
        network.load_state_dict(tensors)
        return TrainedClassifier(
            network.requires_grad_(False).eval(), **json.loads(metadata["record"])
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, RuntimeError):
        return None


def _save(path: Path, trained: TrainedClassifier) -> None:
    """Write weights and record as one file, which exists once it is whole."""
    tensors = trained.network.state_dict()
    record = json.dumps(
        {"accuracy": trained.accuracy, "chance": trained.chance, "samples": trained.samples}
    )
    write_durably(path, save(tensors, {"record": record, "sha256": _digest(tensors, record)}))


def _digest(tensors: Mapping[str, Tensor], record: str) -> str:
    return hashlib.sha256(f"{weights_digest(tensors)}{record}".encode()).hexdigest()
