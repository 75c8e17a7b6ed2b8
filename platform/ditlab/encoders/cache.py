"""Cache of the features of the captions or images seen last."""

import hashlib
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor


class FeatureCache:
    """Features by content in the host's memory; the least recently used are dropped first.

    An epoch over more items than it holds finds none of them again: such data are better encoded
    beforehand.
    """

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self._cached: dict[Hashable, Tensor] = {}

    def rows(
        self, keys: Sequence[Hashable], compute: Callable[[list[int]], Sequence[Tensor]]
    ) -> list[Tensor]:
        """Return the features of each key; `compute` gives those of the places of keys that are not
        cached.

        Of equal keys one is computed. Without entries they stay on the device of `compute`.
        """
        found = {key: self._cached.pop(key) for key in dict.fromkeys(keys) if key in self._cached}
        missing: dict[Hashable, int] = {}
        for place, key in enumerate(keys):
            if key not in found:
                missing.setdefault(key, place)
        if missing:
            for key, row in zip(missing, compute(list(missing.values())), strict=True):
                # a copy: a slice would keep its whole batch in memory
                found[key] = row.to("cpu", copy=True) if self.entries else row
        if self.entries:
            self._cached = dict([*self._cached.items(), *found.items()][-self.entries :])
        return [found[key] for key in keys]


def content_keys(values: Tensor) -> list[bytes]:
    """Return a key for each of (num, ...) values: equal where type, shape and content are."""
    values = values.detach().cpu().contiguous()
    kind = f"{values.dtype}{tuple(values.shape[1:])}".encode()
    rows = values.flatten(1).view(torch.uint8).numpy()
    return [
        hashlib.blake2b(row, digest_size=16, key=hashlib.sha256(kind).digest()).digest()
        for row in rows
    ]


def batch_slices(num: int, device: torch.device, at_once: int) -> list[slice]:
    """Cut `num` places into the parts that are encoded together: `at_once` on a GPU, one by one on
    the CPU.

    One by one, features are a function of their caption or image alone, bit by bit, whatever a
    resumed run's cache holds.
    """
    size = 1 if device.type == "cpu" else at_once
    return [slice(start, start + size) for start in range(0, num, size)]
