"""Training of the classifier, reproducible to the bit on one CPU thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ditlab.data.stores.view import View
from ditlab.inputs.noise import derived_seed
from ditlab.quality.images import ImageFields, RealImages, batches
from ditlab.quality.network import SmallClassifier

VERSION = 1
"""Version of everything that decides the weights: numbers of two versions do not compare."""
STEPS, BATCH, RATE = 1000, 64, 2e-3
CPU = torch.device("cpu")


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

    @property
    def learned_little(self) -> bool:
        """True if the accuracy is below a quarter of the way from chance to 1: the features then say little."""
        return self.accuracy < self.chance + 0.25 * (1 - self.chance)


def train_classifier(real: RealImages, fields: ImageFields, tick: Callable[[], None]) -> TrainedClassifier:
    """Train a thousand steps of AdamW on the CPU, whatever the device of the run. Calls `tick` after each step."""
    with _deterministic():
        network = _fit(real.fit, fields, tick)
        network.scale = (_features(network, real.reference, fields).square().mean() + 1e-12).rsqrt()
        return TrainedClassifier(network, *_accuracy(network, real.held_out, fields), len(real.fit))


@contextmanager
def _deterministic() -> Iterator[None]:
    """Compute on one thread, as sums over several differ in order, and with gradients, which an evaluation disables."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)


def _fit(view: View, fields: ImageFields, tick: Callable[[], None]) -> SmallClassifier:
    parts = list(batches(view, fields, CPU))
    images, labels = torch.cat([image for image, _ in parts]), torch.cat([label for _, label in parts])
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
    return network.requires_grad_(False).eval()


def _features(network: SmallClassifier, view: View, fields: ImageFields) -> Tensor:
    return torch.cat([network.features(images) for images, _ in batches(view, fields, CPU)])


def _accuracy(network: SmallClassifier, view: View, fields: ImageFields) -> tuple[float, float]:
    """Return (accuracy, share of the largest class) on a view's images."""
    right, counts = 0, torch.zeros(fields.num_classes, dtype=torch.int64)
    for images, labels in batches(view, fields, CPU):
        right += int((network(images).argmax(1) == labels).sum())
        counts += labels.bincount(minlength=fields.num_classes)
    return right / len(view), float(counts.max()) / len(view)
