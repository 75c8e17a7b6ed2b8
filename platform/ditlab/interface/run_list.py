"""A list of runs that notebooks show as a table."""

from __future__ import annotations

from typing import SupportsIndex, TypeVar, overload

from ditlab.interface.run_card import ShownRun, runs_table
from ditlab.notebook_html import never_failing

RunT = TypeVar("RunT", bound=ShownRun)


class FoundRuns(list[RunT]):
    """Runs, the newest first: a list, and a table in a notebook. Its parts, as in `runs[:5]`, are tables as well."""

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> RunT: ...
    @overload
    def __getitem__(self, index: slice, /) -> FoundRuns[RunT]: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> RunT | FoundRuns[RunT]:
        return FoundRuns(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    @never_failing
    def _repr_html_(self) -> str:
        return runs_table(self)
