"""Data sources of other packages, by kind: entry points of the group `ditlab.data_sources`."""

from pathlib import Path
from typing import Any, cast

from denoisers.contract import Spec
from denoisers.plugins import PluginGroup
from denoisers.spec_unions import check_kind, kinds_of
from ditlab.spec.composition.mixture import DataSpec
from ditlab.spec.data import HoldOut, HoldOutClasses


class DataSource(Spec):
    """Base of the data of other packages. Subclasses add `kind: Literal[NAME] = NAME`."""

    kind: str
    hold_out: HoldOut | HoldOutClasses = 0.1
    """Samples held out of training, for evaluation: a share of the samples, or all samples of some classes,
    `{column: label, values: [3, 7]}`."""

    def store_name(self) -> str:
        """Return the name of the store's folder below DITLAB_HOME/stores: one for each content."""
        raise NotImplementedError

    def write(self, folder: Path) -> None:
        """Write the store into a folder, with `ditlab.data.write_store`. Called where there is none yet, and perhaps by
        two processes at once, which must write the same rows."""
        raise NotImplementedError


def _check(kind: str, source: Any) -> type[DataSource]:
    check_kind(kind, source, DataSource)
    return cast("type[DataSource]", source)


DATA_SOURCES: PluginGroup[type[DataSource]] = PluginGroup(
    "ditlab.data_sources", "data source", _check, reserved=lambda: kinds_of(DataSpec)
)
