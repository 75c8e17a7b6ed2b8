"""How samples come about: the tokens after each pass, all of them or a few of the first sample.

F frames, L tokens of a sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

NUM_KEPT = 8


class Frames:
    """Is shown the noise at first and then what every pass has drawn."""

    def __init__(self, num_passes: int, trajectory: bool) -> None:
        last = NUM_KEPT - 1
        self._kept_passes = {round(number * num_passes / last) for number in range(NUM_KEPT)}
        self._seen = 0
        self._all: list[Tensor] | None = [] if trajectory else None
        self._kept: list[Tensor] = []
        self._noise: list[float] = []
        self._written: list[int] = []

    def add(self, x: Tensor, noise: float, written: int) -> None:
        """Tokens (num, L), the noise of those at work, and how many tokens are at work or finished."""
        if self._all is not None:
            self._all.append(x)
        if self._seen in self._kept_passes:
            self._kept.append(x[0].cpu())
            self._noise.append(noise)
            self._written.append(written)
        self._seen += 1

    def trajectory(self) -> Tensor | None:
        """(frames, num, L) int64 where asked for."""
        return None if self._all is None else torch.stack(self._all)

    def fields(self) -> dict[str, Tensor]:
        """`frames`, `noise` and `written` of the first sample, as `add` has them: (F, L), (F,) and (F,), F <= 8."""
        noise = torch.tensor(self._noise, dtype=torch.float64)
        return {"frames": torch.stack(self._kept), "noise": noise, "written": torch.tensor(self._written)}
