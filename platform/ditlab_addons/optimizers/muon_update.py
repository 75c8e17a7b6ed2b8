"""Muon's update (Jordan et al. 2024, kellerjordan.github.io/posts/muon) on ZeRO's partitions.

Matrices are orthogonalised by Newton-Schulz iterations, whole or in the slices that workers hold.
Each worker keeps the momentum of its own slices. Matrices are worked on a round at a time, which
bounds the memory; each by one worker, and all get the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.optim.adamw import adamw

from ditlab.engine.deepspeed_internals import ParameterSlice, Partitions
from ditlab.engine.optimizers import EagerOptimizer, ParameterFacts
from ditlab.spec.optimization import GATHERED_VALUES
from ditlab_models.parameters import ParameterRole

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic a x + b x^3 + c x^5, steep at 0: five iterations bring 0.01 to 1 near
1.
"""
NUM_ITERATIONS = 5
TINY = 1e-7
"""Added to the norm that a matrix is divided by; a matrix of zeros stays one."""


class Matrices(NamedTuple):
    """Parameter of two axes or more: one matrix, or several of equal size."""

    shape: tuple[int, ...]
    role: ParameterRole

    @property
    def numel(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def num_rows(self) -> int:
        """Rows of each matrix."""
        axis = 1 if self.role.is_transposed else 0
        return self.shape[axis] // self.role.num_parts

    @property
    def num_columns(self) -> int:
        """Columns of each matrix."""
        return self.numel // (self.num_rows * self.role.num_parts)

    @property
    def flops(self) -> int:
        """Floating-point operations of orthogonalising it, each of its matrices by itself. An
        iteration of a matrix (s, l), s the shorter side, takes x x^T, the square of that, and its
        product with x."""
        short, long = sorted((self.num_rows, self.num_columns))
        return NUM_ITERATIONS * self.role.num_parts * 2 * short * short * (2 * long + short)


class MuonAdamW(EagerOptimizer):
    """Muon for the groups that are orthogonalised, fused AdamW for the others.

    As torch's fused optimisers do, divides gradients by `grad_scale`, and where `found_inf` is 1
    touches neither weights, state nor step count. `spec` is a `Muon`; `bind` says what the
    parameters that it is given are slices of.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], spec: Any) -> None:
        super().__init__(groups, {"betas": spec.betas, "eps": spec.eps})
        self._spec = spec
        self._matrices: dict[int, list[HeldMatrix]] = {}
        """Matrices of each flat parameter, by its `id`, in an order that is equal on all
        workers.
        """
        self._num_workers = 1
        self._is_partitioned = False
        self.found_inf = torch.zeros(())

    def bind(
        self, partitions: Partitions, facts: Mapping[str, ParameterFacts], num_workers: int
    ) -> None:
        """Set the matrices that the flat parameters of the partitions consist of.

        Every worker must call it, as each learns the others' slices.
        """
        self._num_workers = num_workers
        self._is_partitioned = partitions.stage > 0
        for flat, members, slices in zip(
            partitions.flats, partitions.members, partitions.slices_of, strict=True
        ):
            own = {part.name: part for part in slices}
            parts = [own.get(name, ParameterSlice(name, 0, 0, 0)) for name in members]
            held = torch.tensor([part.stop - part.start for part in parts])
            sizes = held[:, None]  # (matrices, workers)
            if self._is_partitioned:
                by_worker = [torch.empty_like(held, device=flat.device) for _ in range(num_workers)]
                distributed.all_gather(by_worker, held.to(flat.device))
                sizes = torch.stack(by_worker, 1)
            self._matrices[id(flat)] = [
                HeldMatrix(Matrices(*facts[part.name]), flat, part, of_workers)
                for part, of_workers in zip(parts, sizes.tolist(), strict=True)
            ]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a group now, with the gradients that they hold."""
        for group in self.param_groups:
            if not group["params"]:
                continue
            if group["moments"] == ("momentum",):
                self._step_muon(group)
            else:
                self._step_adamw(group)

    def _step_adamw(self, group: dict[str, Any]) -> None:
        flats = [flat for flat in group["params"] if flat.grad is not None]
        states = [self.state[flat] for flat in flats]
        first, second, steps = (
            [state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        adamw(
            flats,
            [flat.grad for flat in flats],
            first,
            second,
            [],
            steps,
            fused=True,
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
            amsgrad=False,
            maximize=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
        )

    def _step_muon(self, group: dict[str, Any]) -> None:
        flats = group["params"]
        lr = group["lr"]
        num_workers = self._num_workers
        applied = 1 - self.found_inf.to(flats[0].device)
        kept = 1 - lr * group["weight_decay"] * applied
        if self._is_partitioned and num_workers > 1:
            over = self._over_partitions
        else:
            over = self._over_copies
        for shares in share_out(
            [held for flat in flats for held in self._matrices[id(flat)]], num_workers
        ):
            for held, update in over(shares):
                rows = held.matrix.num_rows
                columns = held.matrix.num_columns
                factor = math.sqrt(max(1.0, rows / columns))
                if self._spec.scale == "rms":
                    factor = 0.2 * math.sqrt(max(rows, columns))
                held.part.of(held.flat.detach()).mul_(kept).sub_(update, alpha=lr * factor)
        for flat in flats:
            self.state[flat]["step"] += applied

    def _follow(self, held: HeldMatrix) -> Tensor:
        """Take a slice's gradient into its momentum; return what is orthogonalised, zero where the
        step is skipped.
        """
        momentum = held.part.of(self.state[held.flat]["momentum"])
        if held.flat.grad is None:
            gradient = torch.zeros_like(momentum)
        else:
            gradient = held.part.of(held.flat.grad)
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale.to(gradient.device)
        followed = torch.add(gradient, momentum, alpha=self._spec.momentum)
        update = followed
        if self._spec.nesterov:
            update = torch.add(gradient, followed, alpha=self._spec.momentum)
        is_left_out = self.found_inf.to(momentum.device) > 0
        momentum.copy_(torch.where(is_left_out, momentum, followed))
        return torch.where(is_left_out, 0.0, update)

    def _over_copies(self, shares: Shares) -> Updates:
        """Orthogonalise a round where every worker holds all: each sends its results to the
        others.
        """
        if len(shares) == 1:
            for held in shares[0]:
                yield held, orthogonalised(held.matrix, self._follow(held))
            return
        rank = distributed.get_rank()
        own = _joined(
            shares, (orthogonalised(held.matrix, self._follow(held)) for held in shares[rank])
        )
        for worker, share in enumerate(shares):
            if worker != rank:
                for held in share:
                    self._follow(held)  # for its momentum
            sizes = [held.matrix.numel for held in share]
            results = own if worker == rank else own.new_empty(sum(sizes))
            if share:
                distributed.broadcast(results, worker)
            yield from zip(share, results.split(sizes), strict=True)
            del results

    def _over_partitions(self, shares: Shares) -> Updates:
        """Orthogonalise a round where workers hold slices, which go to the worker that takes the
        matrix, and back.
        """
        rank = distributed.get_rank()
        workers = range(len(shares))
        own = shares[rank]
        matrices = [held for share in shares for held in share]
        held_sizes = [[held.sizes[rank] for held in share] for share in shares]
        own_sizes = [[held.sizes[worker] for held in own] for worker in workers]
        slices = _exchange(_joined(shares, map(self._follow, matrices)), held_sizes, own_sizes)
        results = [
            orthogonalised(held.matrix, torch.cat([part[place] for part in slices])).split(
                list(held.sizes)
            )
            for place, held in enumerate(own)
        ]
        del slices
        outgoing = _joined(shares, (parts[worker] for worker in workers for parts in results))
        del results
        for share, updates in zip(shares, _exchange(outgoing, own_sizes, held_sizes), strict=True):
            yield from zip(share, updates, strict=True)


def orthogonalised(matrices: Matrices, flat: Tensor) -> Tensor:
    """Orthogonalise each matrix of a flattened parameter (numel,), and return it flattened."""
    whole = flat.view(matrices.shape)
    if matrices.role.is_transposed:
        turned = whole.transpose(0, 1)
        rows = orthogonalise(turned.flatten(1)).view(turned.shape)
        return rows.transpose(0, 1).reshape(-1)
    return orthogonalise(
        whole.reshape(matrices.role.num_parts, matrices.num_rows, matrices.num_columns)
    ).reshape(-1)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring all singular values of each matrix near 1 (0.68 to 1.13); (..., rows, columns) -> the
    same, same dtype.

    Iterates in float32 on a CPU and in bfloat16 on a GPU, whose rounding is far below the
    iteration's own spread.
    """
    a, b, c = COEFFICIENTS
    if matrices.ndim > 2:
        x = matrices.float().flatten(0, -3)
    else:
        x = matrices.float().unsqueeze(0)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + TINY)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT.contiguous()
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    for _ in range(NUM_ITERATIONS):
        gram = torch.bmm(x, x.mT)
        # Sums within the products: 0.7 of the time of separate ones, at 128 rows and 128 to 512
        # columns on one core.
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    if is_tall:
        x = x.mT
    return x.to(matrices.dtype).reshape(matrices.shape)


@dataclass(frozen=True, eq=False)
class HeldMatrix:
    """A matrix of which this worker holds a slice, or all, or nothing."""

    matrix: Matrices
    flat: Tensor
    """Flat parameter of the optimiser to whose group the matrix belongs."""
    part: ParameterSlice
    """This worker's slice in it; an empty one for nothing."""
    sizes: Sequence[int]
    """Values of each worker's slice, by rank; one after the other they are the flattened
    parameter.
    """


Shares = Sequence[Sequence[HeldMatrix]]
"""Matrices of a round by the worker that orthogonalises them."""
Updates = Iterator[tuple[HeldMatrix, Tensor]]
"""Matrices, and this worker's slice of each orthogonalised one. Every worker has to take all of
them.
"""


def share_out(matrices: Sequence[HeldMatrix], num_workers: int) -> Iterator[Shares]:
    """Cut into rounds of about `GATHERED_VALUES` a worker, each shared out by the work; the same on
    all workers.
    """
    rounds: list[list[HeldMatrix]] = []
    values = math.inf
    for each in matrices:
        if values + each.matrix.numel > num_workers * GATHERED_VALUES:
            rounds.append([])
            values = 0
        rounds[-1].append(each)
        values += each.matrix.numel
    for cut in rounds:
        shares: list[list[HeldMatrix]] = [[] for _ in range(num_workers)]
        work = [0] * num_workers
        # The most laborious matrix that is left goes to the worker with the least work.
        for each in sorted(cut, key=lambda held: -held.matrix.flops):
            worker = work.index(min(work))
            shares[worker].append(each)
            work[worker] += each.matrix.flops
        yield shares


def _joined(shares: Shares, flat: Iterable[Tensor]) -> Tensor:
    """Put flat tensors into one; an empty one where there is none, as for a worker without a
    share.
    """
    nothing = max(shares, key=len)[0].flat.new_empty(0)
    return torch.cat([nothing, *flat])


def _exchange(
    outgoing: Tensor, sent: list[list[int]], received: list[list[int]]
) -> list[list[Tensor]]:
    """Send a flat tensor's parts, of sizes by receiver, and return the parts of the others, of
    sizes by sender.
    """
    incoming = outgoing.new_empty(sum(map(sum, received)))
    distributed.all_to_all_single(
        incoming, outgoing, list(map(sum, received)), list(map(sum, sent))
    )
    parts = iter(incoming.split([size for sizes in received for size in sizes]))
    return [[next(parts) for _ in sizes] for sizes in received]
