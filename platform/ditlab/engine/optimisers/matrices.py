"""Parameters as the matrices that Muon orthogonalises, whole or in the slices that workers hold."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from denoisers.parameter_roles import ParameterRole
from ditlab.engine.optimisers.newton_schulz import orthogonalise


@dataclass(frozen=True)
class WholeMatrix:
    """A parameter of two axes or more, as one matrix or several of equal size."""

    shape: tuple[int, ...]
    role: ParameterRole

    @property
    def numel(self) -> int:
        """Number of values."""
        size = 1
        for each in self.shape:
            size *= each
        return size

    @property
    def num_rows(self) -> int:
        """Rows of each matrix."""
        return self.shape[1 if self.role.is_transposed else 0] // self.role.num_parts

    @property
    def num_columns(self) -> int:
        """Columns of each matrix."""
        return self.numel // (self.num_rows * self.role.num_parts)

    @property
    def work(self) -> int:
        """Multiplications of a Newton-Schulz iteration."""
        short, long = sorted((self.num_rows, self.num_columns))
        return self.role.num_parts * short * short * (2 * long + short)

    def orthogonalised(self, flat: Tensor) -> Tensor:
        """Orthogonalise each matrix of the flattened parameter (numel,), and return it flattened."""
        whole = flat.view(self.shape)
        if self.role.is_transposed:
            turned = whole.transpose(0, 1)
            rows = orthogonalise(turned.flatten(1)).view(turned.shape)
            return rows.transpose(0, 1).reshape(-1)
        return orthogonalise(whole.reshape(self.role.num_parts, self.num_rows, self.num_columns)).reshape(-1)


@dataclass(frozen=True, eq=False)
class HeldMatrix:
    """A matrix of which this worker holds a slice, or all, or nothing."""

    matrix: WholeMatrix
    flat: Tensor
    """Flat parameter of the optimiser to whose group the matrix belongs."""
    offset: int
    """Place of this worker's slice in it."""
    num_held: int
    """Values of that slice."""
    sizes: Sequence[int]
    """Values of each worker's slice, by rank; one after the other they are the flattened parameter."""

    def of(self, flat: Tensor) -> Tensor:
        """Return this worker's slice of a tensor as large as the flat parameter, a view."""
        return flat.view(-1)[self.offset : self.offset + self.num_held]
