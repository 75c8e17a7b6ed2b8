"""Muon on ZeRO's partitions, and AdamW for the rest (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

Each worker keeps the momentum of its own slices. To orthogonalise, matrices are gathered whole, each on one worker,
whose result goes to all; so every matrix is worked on once, and its update has the same bits everywhere.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from ditlab.engine.optimisers.matrices import HeldMatrix, WholeMatrix
from ditlab.engine.optimisers.shared_work import Shares, Updates, by_one, over_copies, over_partitions, share_out
from ditlab.spec.optimisation.optimisers import Muon


class MuonAdamW(torch.optim.Optimizer):
    """Muon for the groups that are orthogonalised, fused AdamW for the others.

    As torch's fused optimisers do, divides gradients by `grad_scale`, and where `found_inf` is 1 touches neither
    weights, state nor step count. `bind` says what the parameters that it is given are slices of.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], spec: Muon) -> None:
        super().__init__(groups, {"betas": spec.betas, "eps": spec.eps})
        self._spec = spec
        self._matrices: Mapping[int, Sequence[HeldMatrix]] = {}
        self._num_workers = 1
        self._is_partitioned = False
        self.grad_scale: Tensor | None = None
        self.found_inf = torch.zeros(())

    def bind(self, matrices: Mapping[int, Sequence[HeldMatrix]], num_workers: int, is_partitioned: bool) -> None:
        """Set the matrices of each flat parameter, by its `id`, in an order that is equal on all workers.

        `is_partitioned`: workers hold slices; else each holds all.
        """
        self._matrices, self._num_workers, self._is_partitioned = matrices, num_workers, is_partitioned

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
        flats, lr = group["params"], group["lr"]
        applied = 1 - self.found_inf.to(flats[0].device)
        kept = 1 - lr * group["weight_decay"] * applied
        for shares in share_out([held for flat in flats for held in self._matrices[id(flat)]], self._num_workers):
            for held, update in self._orthogonalised(shares):
                held.of(held.flat.detach()).mul_(kept).sub_(update, alpha=lr * self._factor(held.matrix))
        for flat in flats:
            self.state[flat]["step"] += applied

    def _orthogonalised(self, shares: Shares) -> Updates:
        if self._num_workers == 1:
            return by_one(shares, self._follow)
        return (over_partitions if self._is_partitioned else over_copies)(shares, self._follow)

    def _follow(self, held: HeldMatrix) -> Tensor:
        """Take a slice's gradient into its momentum; return what is orthogonalised, zero where the step is left out."""
        momentum = held.of(self.state[held.flat]["momentum"])
        gradient = torch.zeros_like(momentum) if held.flat.grad is None else held.of(held.flat.grad)
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale.to(gradient.device)
        followed = torch.add(gradient, momentum, alpha=self._spec.momentum)
        update = torch.add(gradient, followed, alpha=self._spec.momentum) if self._spec.nesterov else followed
        is_left_out = self.found_inf.to(momentum.device) > 0
        momentum.copy_(torch.where(is_left_out, momentum, followed))
        return torch.where(is_left_out, 0.0, update)

    def _factor(self, matrix: WholeMatrix) -> float:
        if self._spec.scale == "rms":
            return 0.2 * math.sqrt(max(matrix.num_rows, matrix.num_columns))
        return math.sqrt(max(1.0, matrix.num_rows / matrix.num_columns))
