"""Frames of sampling: the tokens after each denoising step, of all samples or a few frames of the first one.

F frames, L tokens of a sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

NUM_FRAMES = 8
"""Frames of the first sample."""


class Frames:
    """Recorder of the initial noise and of the tokens after every step."""

    def __init__(self, num_steps: int, trajectory: bool) -> None:
        last = NUM_FRAMES - 1
        self._recorded_steps = {round(number * num_steps / last) for number in range(NUM_FRAMES)}
        self._step = 0
        self._all: list[Tensor] | None = [] if trajectory else None
        self._first: list[Tensor] = []
        self._sigma: list[float] = []
        self._num_written: list[int] = []

    def add(self, x: Tensor, sigma: float, num_written: int) -> None:
        """Record tokens (num, L), the sigma of the active ones, and the number of active and finished tokens."""
        if self._all is not None:
            self._all.append(x)
        if self._step in self._recorded_steps:
            self._first.append(x[0].clone())  # on its device: a copy to the host would wait for it
            self._sigma.append(sigma)
            self._num_written.append(num_written)
        self._step += 1

    def trajectory(self) -> Tensor | None:
        """Return all frames (frames, num, L) int64, if they were requested."""
        return None if self._all is None else torch.stack(self._all)

    def fields(self) -> dict[str, Tensor]:
        """Return the first sample's arguments of `add`: `frames` (F, L), `noise` (F,) and `written` (F,), F <= 8."""
        noise = torch.tensor(self._sigma, dtype=torch.float64)
        return {"frames": torch.stack(self._first).cpu(), "noise": noise, "written": torch.tensor(self._num_written)}
