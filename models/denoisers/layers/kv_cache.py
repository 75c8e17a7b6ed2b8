"""Keys and values of finished blocks, so that a later block's passes need not compute them again.

B batch, H heads, K width of a head, T tokens of a pass.
"""

from __future__ import annotations

from torch import Tensor


class LayerCache:
    """What one attention layer remembers: keys, turned to their absolute positions, and values."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Writes (B, H, T, K) behind the committed tokens; returns views of both together, (B, H, length + T, K).

        What is written is overwritten by the next pass, unless it is committed. The first pass makes room for all
        tokens, in the dtype that keys then have (bfloat16 under autocast).
        """
        if self._keys is None or self._values is None:
            shape = (*keys.shape[:2], self.capacity, keys.shape[-1])
            self._keys, self._values = keys.new_empty(shape), values.new_empty(shape)
        end = self.length + keys.shape[2]
        assert end <= self.capacity, f"{end} tokens do not fit into a cache of {self.capacity}"
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        return self._keys[:, :, :end], self._values[:, :, :end]


class KVCache:
    """One `LayerCache` for each block of the network; for sampling, without gradients."""

    def __init__(self, depth: int, capacity: int) -> None:
        self.layers = tuple(LayerCache(capacity) for _ in range(depth))

    @property
    def length(self) -> int:
        """Committed tokens: the position of the next pass' first one."""
        return self.layers[0].length

    def commit(self, num: int) -> None:
        """Keeps the first `num` tokens of the last pass."""
        for layer in self.layers:
            layer.length += num
