"""Parameters as the matrices that Muon orthogonalises, whole or in the slices that a worker holds."""

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
    """A matrix of which this worker holds the slice `start:stop`, if any, flattened."""

    matrix: WholeMatrix
    flat: Tensor
    """Flat parameter of the optimiser to whose group the matrix belongs."""
    offset: int = 0
    """Place of the slice in it."""
    start: int = 0
    stop: int = 0

    def of(self, flat: Tensor) -> Tensor:
        """Return this worker's slice of a tensor as large as the flat parameter, a view."""
        return flat.view(-1)[self.offset : self.offset + self.stop - self.start]
