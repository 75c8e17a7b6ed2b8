"""Keys and values of finished tokens, so that later forward passes need not compute them again.

B batch, H heads, K width of a head, T tokens of a forward pass.
"""

from __future__ import annotations

from torch import Tensor


class LayerCache:
    """Keys, turned to their absolute positions, and values of one attention layer."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write (B, H, T, K) behind the committed tokens; return views of both together, (B, H, length + T, K).

        The next forward pass overwrites these tokens, unless they are committed. The first one allocates memory for
        `capacity` tokens, in the dtype that keys then have (bfloat16 under autocast).
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
    """One `LayerCache` for each block of a network; for sampling, without gradients."""

    def __init__(self, depth: int, capacity: int) -> None:
        self.layers = tuple(LayerCache(capacity) for _ in range(depth))

    @property
    def length(self) -> int:
        """Number of committed tokens: the position of the next forward pass' first token."""
        return self.layers[0].length

    def commit(self, num: int) -> None:
        """Keep the first `num` tokens of the last forward pass."""
        for layer in self.layers:
            layer.length += num
