"""Pool of memory for gathered rows."""

import math
import sys
import threading

import numpy as np
import torch
from torch import Tensor


class BufferPool:
    """Tensors of up to `elements` numbers whose memory comes back to the pool when the last view of it is gone.

    Fresh memory of this size comes from the operating system a page fault at a time, which was seen to cost as much as
    filling it. Rows of all shapes share the memory, or images of forty sizes would hold forty times as much. Pinned
    memory is not pooled here: torch's allocator keeps it already.
    """

    def __init__(self, elements: int, dtype: torch.dtype, num: int):
        self._elements = elements
        self._dtype = torch.empty(0, dtype=dtype).numpy().dtype
        self._num = num
        """Most buffers in the pool; where more are in use at once, the rest is ordinary memory."""
        self._buffers: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """Return an uninitialised tensor of a shape."""
        elements = math.prod(shape)
        with self._lock:
            for buffer in self._buffers:
                # 3: the pool's list, `buffer` and the argument; tensors and their views keep a reference more
                if sys.getrefcount(buffer) == 3:
                    return torch.from_numpy(buffer[:elements].reshape(shape))
            fresh = np.empty(self._elements, self._dtype)
            if len(self._buffers) < self._num:
                self._buffers.append(fresh)
            return torch.from_numpy(fresh[:elements].reshape(shape))
