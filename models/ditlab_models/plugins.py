"""Parts that other packages add by entry points: families, loss components, time densities, data
sources, add-ons.

Names are read without importing a package's code. The code is imported when one of its parts is
named, or when all parts are listed; a listing skips a part that fails or takes longer than
`LISTING_TIMEOUT`, with one warning. No torch.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

LISTING_TIMEOUT = 5.0
"""Seconds that the import of a part may take when all parts are listed. A part that is named has no
limit.
"""
BUILT_IN = "ditlab"
"""The distribution that this package belongs to."""
PREFIXES = (b"ditlab.", b"denoisers.")
"""Beginnings of the names of groups of entry points, former ones as well."""
RENAMED = {
    "denoisers.families": "ditlab.families",
    "denoisers.loss_components": "ditlab.loss_components",
    "denoisers.time_densities": "ditlab.time_densities",
}
"""Groups of entry points by their former names, which are not read."""

PartT = TypeVar("PartT")


class PluginError(Exception):
    """A part that is named and cannot be used. The message names the package, the reason and the
    remedy.
    """


class PluginWarning(UserWarning):
    """A part that a listing skips."""


class Plugin(NamedTuple):
    """A named part of a package or folder, whose code is not imported yet."""

    name: str
    target: str
    """Module and attribute of the part: `wavelets.family:FAMILY`."""
    package: str = ""
    """Distribution that it belongs to; "" for a folder on the Python path."""
    version: str = ""
    """Version of the distribution."""
    folder: str = ""
    """The folder on the Python path."""

    @property
    def origin(self) -> str:
        """Description for messages: `package wavelets 1.2 (entry point wave =
        wavelets.family:FAMILY)`.
        """
        if not self.package:
            return f"folder {self.folder}"
        return f"package {self.package} {self.version} (entry point {self.name} = {self.target})"


class PluginGroup(Generic[PartT]):
    """All parts of one kind, by name."""

    def __init__(
        self,
        group: str,
        noun: str,
        check: Callable[[str, Any], PartT],
        *,
        folders: Callable[[str | None], Iterable[Plugin]] = lambda name: (),
        reserved: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Describe a group of entry points; `noun` is the kind of part, for messages: `model
        family`.

        `check` returns the loaded object as a part, or raises ValueError with the reason; `folders`
        finds parts that are no entry points; `reserved` are names of built-in parts, which no
        package may take.
        """
        self.group = group
        self.noun = noun
        self._check = check
        self._folders = folders
        self._reserved = reserved
        self._parts: dict[Plugin, PartT] = {}
        self._warned: set[str] = set()
        self._importing: dict[Plugin, threading.Thread] = {}

    def names(self) -> list[str]:
        """Return the names of all parts, sorted, without importing code."""
        return sorted(self._plugins())

    def find(self, name: str) -> Plugin | None:
        """Return the part of a name, not imported; None: there is none. Raises PluginError where
        two packages use the name."""
        for plugin in self._folders(name):
            if plugin.package == BUILT_IN:
                return plugin  # without a search through all installed packages
        plugins = self._plugins().get(name, [])
        return self._only(name, plugins) if plugins else None

    def load(self, name: str) -> PartT | None:
        """Return the part of a name; None where there is none. Raises PluginError where its code
        cannot be used.
        """
        plugin = self.find(name)
        return None if plugin is None else self._part(plugin)

    def load_all(self) -> dict[str, PartT]:
        """Return every part that can be used, by name, sorted. Warns once of each that cannot."""
        found = {}
        for name, plugins in sorted(self._plugins().items()):
            try:
                found[name] = self._within_timeout(self._only(name, plugins))
            except PluginError as error:
                self._warn(str(error))
        for plugin in _offers(self.group, tuple(sys.path)):
            if plugin.name in self._reserved():
                self._warn(
                    f"{plugin.origin} is skipped: {self.noun} '{plugin.name}' is built in; "
                    "rename the entry point."
                )
        return found

    def _plugins(self) -> dict[str, list[Plugin]]:
        """Parts by name; more than one under a name that is used twice. A built-in part hides
        others of its name.
        """
        found: dict[str, list[Plugin]] = {}
        reserved = self._reserved()
        _warn_of_former_groups(tuple(sys.path))
        for plugin in self._folders(None):
            found.setdefault(plugin.name, []).append(plugin)
        for plugin in _offers(self.group, tuple(sys.path)):
            known = found.setdefault(plugin.name, [])
            if plugin.name not in reserved and plugin.target not in [
                other.target for other in known
            ]:
                known.append(plugin)
        return {name: plugins for name, plugins in found.items() if plugins}

    def _part(self, plugin: Plugin) -> PartT:
        if plugin not in self._parts:
            try:
                self._parts[plugin] = self._check(plugin.name, resolve_name(plugin.target))
            except (Exception, SystemExit) as error:  # whatever a stranger's module raises
                holder = "package" if plugin.package else "folder"
                raise PluginError(
                    f"{self.noun} '{plugin.name}' of {plugin.origin} cannot be used "
                    f"({_reason(error)}); repair, update or remove that {holder}."
                ) from error
        return self._parts[plugin]

    def _within_timeout(self, plugin: Plugin) -> PartT:
        """Load a part in a thread, as an import cannot be stopped: one that takes too long goes on
        unobserved.
        """

        def load() -> None:
            with suppress(PluginError):  # the caller loads again, and reports it
                self._part(plugin)

        if plugin in self._parts or plugin.package == BUILT_IN:
            return self._part(plugin)
        if plugin not in self._importing:
            self._importing[plugin] = threading.Thread(target=load, daemon=True)
            self._importing[plugin].start()
            self._importing[plugin].join(LISTING_TIMEOUT)
        if self._importing[plugin].is_alive():
            raise PluginError(
                f"{self.noun} '{plugin.name}' of {plugin.origin} is skipped, as its import "
                f"takes more than {LISTING_TIMEOUT:g} s; import heavy libraries inside "
                "functions."
            )
        return self._part(plugin)

    def _only(self, name: str, plugins: list[Plugin]) -> Plugin:
        if len(plugins) > 1:
            origins = " and ".join(plugin.origin for plugin in plugins)
            raise PluginError(
                f"{self.noun} '{name}' is defined twice, by {origins}; remove one of the two."
            )
        return plugins[0]

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, PluginWarning, stacklevel=3)


def _reason(error: BaseException) -> str:
    """Return the first line of an error, with its kind where the part itself did not refuse."""
    reason = "no message"
    lines = str(error).strip().splitlines()
    if lines:
        reason = lines[0].rstrip(".")
    if isinstance(error, ValueError):
        return reason
    return f"{type(error).__name__}: {reason}"


def plugins_in_folders(
    package: Any, module: str, attribute: str, only: str | None = None
) -> Iterator[Plugin]:
    """Yield the parts in folders of a package's path, or the one of a name: `attribute` of
    `NAME/MODULE.py`.

    The first folder of a name hides those after it. Those beside the package's own file are built
    in.
    """
    places = tuple((place, frozenset(_names_in(place))) for place in package.__path__)
    for plugin in _found_in(
        places, package.__name__, Path(package.__file__).parent, module, attribute
    ):
        if only in (None, plugin.name):
            yield plugin


@cache
def _found_in(
    places: tuple[tuple[str, frozenset[str]], ...],
    package: str,
    own: Path,
    module: str,
    attribute: str,
) -> list[Plugin]:
    """Return the parts in folders of places, each with the names that are there now.

    Looking into each folder at each call took nine tenths of the time of a spec's validation.
    """
    found: dict[str, Plugin] = {}
    for place, names in places:
        for name in sorted(names):
            folder = Path(place, name)
            if name not in found and (folder / f"{module}.py").is_file():
                origin = BUILT_IN if folder.parent == own else ""
                found[name] = Plugin(
                    name, f"{package}.{name}.{module}:{attribute}", origin, folder=str(folder)
                )
    return list(found.values())


def _names_in(place: str) -> list[str]:
    try:
        return os.listdir(place)  # noqa: PTH208 (no Path for each)
    except OSError:  # a folder that went
        return []


@cache
def _offers(group: str, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Return the entry points of a group, for one state of the Python path."""
    if not _are_offered(path):
        return ()
    return tuple(
        Plugin(point.name, point.value, point.dist.metadata["Name"], point.dist.version)
        for point in sorted(
            _entry_points(path).select(group=group), key=lambda point: (point.name, point.value)
        )
        if point.dist is not None
    )


@cache
def _are_offered(path: tuple[str, ...]) -> bool:
    """Return False where no package has entry points of a group of ours.

    Reading the files takes 5 ms; importlib.metadata takes 40 ms to find none, in every command.
    """
    for place in path:
        try:
            names = os.listdir(place or ".")  # noqa: PTH208 (no Path for each of hundreds)
        except NotADirectoryError:  # an archive
            return True
        except OSError:
            continue
        infos = [name for name in names if name.endswith("-info")]
        if any(_names_a_group(f"{place or '.'}/{name}/entry_points.txt") for name in infos):
            return True
    return False


def _names_a_group(file: str) -> bool:
    try:
        with open(file, "rb") as opened:  # noqa: PTH123 (no Path for each of hundreds)
            text = opened.read()
    except OSError:  # none, or of a package that importlib.metadata cannot read either
        return False
    return any(b"[" + prefix in text for prefix in PREFIXES)


@cache
def _entry_points(path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of all packages: one search for all groups, for one state of the
    Python path.
    """
    from importlib.metadata import entry_points

    found: Any = entry_points()  # of all groups; mypy takes it for Python 3.10's mapping
    return found


_former_parts: set[str] = set()
"""Packages and folders of former names that were warned of in this process."""


@cache
def _warn_of_former_groups(path: tuple[str, ...]) -> None:
    """Warn once a process of each package with parts in groups of former names that it has in no
    present one.
    """
    groups: dict[str, list[str]] = {}
    for former, present in RENAMED.items():
        known = {(plugin.package, plugin.name) for plugin in _offers(present, path)}
        for plugin in _offers(former, path):
            found = groups.setdefault(f"{plugin.package} {plugin.version}", [])
            if (plugin.package, plugin.name) not in known and former not in found:
                found.append(former)
    for package, names in groups.items():
        if names:
            renamed = " and ".join(RENAMED[name] for name in names)
            reason = (
                f"parts of package {package} are not read, as it names them in "
                f"{' and '.join(names)}"
            )
            warn_of_former_part(package, f"{reason}; name them in {renamed}")


def warn_of_former_part(origin: str, message: str) -> None:
    """Warn once a process of a package or folder that was made for former names."""
    if origin not in _former_parts:
        _former_parts.add(origin)
        text = f"{message}, and import ditlab_models in place of denoisers."
        warnings.warn(text, PluginWarning, stacklevel=3)
