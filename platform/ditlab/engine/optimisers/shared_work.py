"""Orthogonalisation shared out over workers: each matrix is worked on by one of them, and all get the same bits.

A round of matrices at a time, so that what is gathered takes bounded memory whatever the network's size.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, distributed

from ditlab.engine.optimisers.matrices import HeldMatrix
from ditlab.spec.optimisation.optimisers import GATHERED_VALUES

Shares = Sequence[Sequence[HeldMatrix]]
"""Matrices of a round by the worker that orthogonalises them."""
Follow = Callable[[HeldMatrix], Tensor]
"""Takes this worker's gradient of a matrix into its momentum, and returns its slice of what is orthogonalised."""
Updates = Iterator[tuple[HeldMatrix, Tensor]]
"""Matrices, and this worker's slice of each orthogonalised one. Every worker has to take all of them."""
Sizes = Sequence[Sequence[int]]
"""Values of flat tensors, by the worker that they go to or come from."""


def share_out(matrices: Sequence[HeldMatrix], num_workers: int) -> Iterator[Shares]:
    """Cut into rounds of about `GATHERED_VALUES` a worker, each shared out by the work; the same on all workers."""
    cut: list[HeldMatrix] = []
    values = 0
    for each in matrices:
        if cut and values + each.matrix.numel > num_workers * GATHERED_VALUES:
            yield _balanced(cut, num_workers)
            cut, values = [], 0
        cut.append(each)
        values += each.matrix.numel
    if cut:
        yield _balanced(cut, num_workers)


def _balanced(matrices: Sequence[HeldMatrix], num_workers: int) -> Shares:
    """Give the most laborious matrix that is left to the worker with the least work, until none is left."""
    shares: list[list[HeldMatrix]] = [[] for _ in range(num_workers)]
    work = [0] * num_workers
    for each in sorted(matrices, key=lambda held: -held.matrix.work):
        worker = work.index(min(work))
        shares[worker].append(each)
        work[worker] += each.matrix.work
    return shares


def by_one(shares: Shares, follow: Follow) -> Updates:
    """Orthogonalise a round on the only worker there is."""
    for held in shares[0]:
        yield held, held.matrix.orthogonalised(follow(held))


def over_copies(shares: Shares, follow: Follow) -> Updates:
    """Orthogonalise a round where every worker holds all: each sends its results to the others."""
    rank = distributed.get_rank()
    own = _joined(shares, (held.matrix.orthogonalised(follow(held)) for held in shares[rank]))
    for worker, share in enumerate(shares):
        if worker != rank:
            for held in share:
                follow(held)  # for its momentum
        sizes = [held.matrix.numel for held in share]
        results = own if worker == rank else own.new_empty(sum(sizes))
        if share:
            distributed.broadcast(results, worker)
        yield from zip(share, results.split(sizes), strict=True)
        del results


def over_partitions(shares: Shares, follow: Follow) -> Updates:
    """Orthogonalise a round where workers hold slices, which go to the worker that takes the matrix, and back."""
    rank, workers = distributed.get_rank(), range(len(shares))
    own, matrices = shares[rank], [held for share in shares for held in share]
    held_sizes = [[held.num_held for held in share] for share in shares]
    own_sizes = [[held.sizes[worker] for held in own] for worker in workers]
    slices = _exchange(_joined(shares, map(follow, matrices)), held_sizes, own_sizes)
    results = [
        held.matrix.orthogonalised(torch.cat([part[place] for part in slices])).split(list(held.sizes))
        for place, held in enumerate(own)
    ]
    del slices
    outgoing = _joined(shares, (parts[worker] for worker in workers for parts in results))
    del results
    for share, updates in zip(shares, _exchange(outgoing, own_sizes, held_sizes), strict=True):
        yield from zip(share, updates, strict=True)


def _joined(shares: Shares, flat: Iterable[Tensor]) -> Tensor:
    """Put flat tensors into one; an empty one where there is none, as for a worker without a share."""
    nothing = max(shares, key=len)[0].flat.new_empty(0)
    return torch.cat([nothing, *flat])


def _exchange(outgoing: Tensor, sent: Sizes, received: Sizes) -> Sequence[Sequence[Tensor]]:
    """Send a flat tensor's parts to the workers by rank, and return the parts that they send, by sender."""
    incoming = outgoing.new_empty(sum(map(sum, received)))
    distributed.all_to_all_single(incoming, outgoing, list(map(sum, received)), list(map(sum, sent)))
    parts = iter(incoming.split([size for sizes in received for size in sizes]))
    return [[next(parts) for _ in sizes] for sizes in received]
