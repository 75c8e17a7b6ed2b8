"""Muon on ZeRO's partitions, and AdamW for the rest (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

Each worker keeps the momentum of its own slices. To orthogonalise, matrices are gathered whole, each on one worker,
whose result goes to all; so every matrix is worked on once, and its update has the same bits everywhere.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.optim.adamw import adamw

from ditlab.engine.optimisers.matrices import HeldMatrix, WholeMatrix
from ditlab.spec.optimisation.optimisers import Muon

BATCH_VALUES = 2**25
"""Values of the matrices that are gathered at once, 128 MiB; a larger one is gathered alone."""


class MuonAdamW(torch.optim.Optimizer):
    """Muon for the groups that are orthogonalised, fused AdamW for the others.

    As torch's fused optimisers do, divides gradients by `grad_scale`, and where `found_inf` is 1 touches neither
    weights, state nor step count. `bind` says what the parameters that it is given are slices of.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], spec: Muon) -> None:
        super().__init__(groups, {"betas": spec.betas, "eps": spec.eps})
        self._spec = spec
        self._matrices: Mapping[int, Sequence[HeldMatrix]] = {}
        self._is_partitioned = False
        self.grad_scale: Tensor | None = None
        self.found_inf: Tensor | None = None

    def bind(self, matrices: Mapping[int, Sequence[HeldMatrix]], is_partitioned: bool) -> None:
        """Set the matrices of each flat parameter, by its `id`, in an order that is equal on all workers.

        `is_partitioned`: workers hold slices; else each holds all.
        """
        self._matrices, self._is_partitioned = matrices, is_partitioned

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a group now, with the gradients that they hold."""
        for group in self.param_groups:
            if group["params"]:
                (self._step_muon if group["is_orthogonalised"] else self._step_adamw)(group)

    def _step_adamw(self, group: dict[str, Any]) -> None:
        flats = [flat for flat in group["params"] if flat.grad is not None]
        states = [self.state[flat] for flat in flats]
        adamw(
            flats,
            [flat.grad for flat in flats],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _step_muon(self, group: dict[str, Any]) -> None:
        flats = group["params"]
        updates = {id(flat): self._follow(flat) for flat in flats}
        lr, decay = group["lr"], group["lr"] * group["weight_decay"]
        applied = 1.0 if self.found_inf is None else 1 - self.found_inf.to(flats[0].device)
        for held, update in self._orthogonalised(flats, updates):
            weights = held.of(held.flat.detach())
            weights.mul_(1 - decay * applied).sub_(update, alpha=lr * self._factor(held.matrix))

    def _follow(self, flat: Tensor) -> Tensor:
        """Take a flat's gradient into its momentum; return what is orthogonalised, zero where the step is left out."""
        state = self.state[flat]
        momentum = state["momentum"]
        gradient = torch.zeros_like(momentum) if flat.grad is None else flat.grad
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale.to(gradient.device)
        followed = torch.add(gradient, momentum, alpha=self._spec.momentum)
        update = torch.add(gradient, followed, alpha=self._spec.momentum) if self._spec.nesterov else followed
        if self.found_inf is None:
            momentum.copy_(followed)
            state["step"] += 1
            return update
        found_inf = self.found_inf.to(flat.device)
        momentum.copy_(torch.where(found_inf > 0, momentum, followed))
        state["step"] += 1 - found_inf
        return torch.where(found_inf > 0, 0.0, update)

    def _orthogonalised(
        self, flats: Sequence[Tensor], updates: Mapping[int, Tensor]
    ) -> Iterator[tuple[HeldMatrix, Tensor]]:
        """Yield this worker's slices and their orthogonalised updates; `updates` are by the `id` of their flat."""
        matrices = [held for flat in flats for held in self._matrices[id(flat)]]
        num_workers = distributed.get_world_size() if distributed.is_initialized() else 1
        for batch in _batches(matrices, num_workers):
            if num_workers == 1:
                results = [each.matrix.orthogonalised(each.of(updates[id(each.flat)])) for each in batch]
            else:
                results = self._shared(batch, updates, num_workers)
            for held, result in zip(batch, results, strict=True):
                if held.start < held.stop:
                    yield held, result[held.start : held.stop]

    def _shared(self, batch: Sequence[HeldMatrix], updates: Mapping[int, Tensor], num_workers: int) -> list[Tensor]:
        """Orthogonalise a batch's matrices, each on one worker; return them all, flattened."""
        wholes = [self._with_own_slice(held, updates[id(held.flat)]) for held in batch]
        owners = [place % num_workers for place in range(len(batch))]
        if self._is_partitioned:  # a sum of slices that do not overlap: exact
            _wait(distributed.reduce(each, owner, async_op=True) for each, owner in zip(wholes, owners, strict=True))
        rank = distributed.get_rank()
        results = [
            held.matrix.orthogonalised(whole) if owner == rank else whole
            for held, whole, owner in zip(batch, wholes, owners, strict=True)
        ]
        _wait(distributed.broadcast(each, owner, async_op=True) for each, owner in zip(results, owners, strict=True))
        return results

    @staticmethod
    def _with_own_slice(held: HeldMatrix, update: Tensor) -> Tensor:
        whole = torch.zeros(held.matrix.numel, dtype=update.dtype, device=update.device)
        whole[held.start : held.stop] = held.of(update)
        return whole

    def _factor(self, matrix: WholeMatrix) -> float:
        if self._spec.scale == "rms":
            return 0.2 * math.sqrt(max(matrix.num_rows, matrix.num_columns))
        return math.sqrt(max(1.0, matrix.num_rows / matrix.num_columns))


def _wait(works: Iterator[Any]) -> None:
    for work in list(works):
        work.wait()


def _batches(matrices: Sequence[HeldMatrix], num_workers: int) -> Iterator[Sequence[HeldMatrix]]:
    """Cut into batches of a matrix for each worker, or a multiple of that, of at most `BATCH_VALUES` where possible."""
    batch: list[HeldMatrix] = []
    values = 0
    for each in matrices:
        if batch and (num_workers == 1 or values + each.matrix.numel > BATCH_VALUES):
            yield batch
            batch, values = [], 0
        batch.append(each)
        values += each.matrix.numel
    if batch:
        yield batch
