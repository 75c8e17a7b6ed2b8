"""Files of published weights: found in a folder or on the Hugging Face hub, hashed, and read as
tensors by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ditlab.errors import UserError, first_line
from ditlab.home import Home, resolve_user_file
from ditlab.selection import MOST_LISTED, Selection
from ditlab.storage.plain_files import MIB, is_relative, open_regular_file, parse_json, read_plain
from ditlab.storage.remote import HUB, NotFetched, fetch_repository
from ditlab.weights.class_names import CLASSES_NAME
from ditlab.weights.pickled import SUFFIXES, read_pickled
from ditlab.weights.tensor_sets import AUTO, UnreadableSets, take_tensors

INDEX = ".index.json"
"""End of the name of a file that lists shards."""
SAFE = ("*.safetensors",)
PICKLED = tuple(f"*{suffix}" for suffix in SUFFIXES)
BESIDE = ("*.json", "*.yaml", CLASSES_NAME)
"""Files that are fetched with weights."""
MAX_TEXT_FILE = 64 * MIB
"""Bytes of an index or a configuration."""
_REPOSITORY = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([^/@\s]+))?(?:/(.+))?")


@dataclass(frozen=True)
class WeightFiles:
    """Files of one network's weights."""

    option: str
    """Option and place that name them, for messages: `model.init.from=weights`."""
    paths: tuple[Path, ...]
    """Files with tensors: one, or the shards of an index."""
    revision: str = ""
    """Commit on the hub; empty for files of this machine."""
    index: Mapping[str, str] = field(default_factory=dict)
    """Name of the file of each tensor that an index of shards lists; {} without one."""
    choices: tuple[Selection, ...] = ()
    """Selections among the files of a folder."""

    @classmethod
    def find(cls, place: str, option: str, home: Home, revision: str = "") -> WeightFiles:
        """Find the weights at a file, a folder or a place on the hub, at a recorded commit where
        one is given.

        Raises UserError where there are none, or several that nothing chooses from.
        """
        name = f"{option}={place}"
        path = resolve_user_file(place)
        commit = ""
        if place.startswith(HUB):
            path, commit = _from_hub(place, name, home, revision)
        is_folder = path.is_dir()
        if is_folder:
            path = _in_folder(path, name)
        elif not path.exists():
            raise UserError(
                f"{name} is not there; name a file or folder of weights, or "
                "hf://OWNER/NAME@REVISION."
            )
        paths, index = _shards(path, name)
        choices: tuple[Selection, ...] = ()
        if is_folder:
            choices = _skipped_beside(path, paths)
        return cls(name, paths, commit, index, choices)

    @property
    def folder(self) -> Path:
        """Folder of the files."""
        return self.paths[0].parent

    @cached_property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of each file by its name. Raises UserError for a file that cannot be read."""
        found = {}
        for path in self.paths:
            try:
                with open_regular_file(path, follow=True) as file:
                    found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise self._unreadable(path, error) from None
        return found

    @property
    def sha256(self) -> str:
        """SHA-256 of the file; of several, that of the lines that `sha256sum` prints of them,
        sorted by name.
        """
        if len(self.paths) == 1:
            return next(iter(self.hashes.values()))
        lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(self.hashes.items()))
        return hashlib.sha256(lines.encode()).hexdigest()

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Content of `config.json` beside the weights; {} where there is none. Raises UserError for
        a damaged one.
        """
        path = self.folder / "config.json"
        try:
            content = parse_json(read_plain(path, MAX_TEXT_FILE, follow=True))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._unreadable(path, error) from None
        return content if isinstance(content, dict) else {}

    def read(
        self, wanted: str = AUTO, option: str = ""
    ) -> tuple[dict[str, Tensor], list[Selection]]:
        """Return the tensors of one set by name, and what was chosen among files and sets.

        `wanted` names the set where a file holds several (`tensor_sets.take_tensors`), `option`
        what the user chooses it by, for messages. Of shards, the tensors that their index assigns
        to each are taken. Raises UserError for files that cannot be read, that lack a tensor of
        their index, and where nothing says which set is meant.
        """
        found: dict[Any, Any] = {}
        unlisted: list[str] = []
        for path in self.paths:
            if path.suffix in SUFFIXES:
                content = read_pickled(path, self.option)
            else:
                content = self._read_safe(path)
            if not isinstance(content, Mapping):
                raise UserError(
                    f"{self.option}: {path.name} holds no tensors by name; name a file of a "
                    "network's weights."
                )
            if self.index:
                others = {key for key in content if self.index.get(key) != path.name}
                unlisted.extend(f"{key} of {path.name}" for key in sorted(map(str, others)))
                content = {key: each for key, each in content.items() if key not in others}
            found |= content
        lacking = sorted(self.index.keys() - found.keys())
        if lacking:
            raise UserError(
                f"{self.option}: its index lists {len(lacking)} tensors that its files lack "
                f"({', '.join(lacking[:MOST_LISTED])}); fetch index and files of one revision."
            )
        by_index = []
        if unlisted:
            by_index.append(Selection("the tensors of its index", tuple(unlisted)))
        try:
            tensors, choices = take_tensors(found, wanted, option)
        except UnreadableSets as error:
            raise UserError(f"{self.option} {error}.") from None
        return tensors, [*self.choices, *by_index, *choices]

    def _read_safe(self, path: Path) -> dict[str, Tensor]:
        try:
            open_regular_file(path, follow=True).close()
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise self._unreadable(path, error) from None

    def _unreadable(self, path: Path, error: Exception) -> UserError:
        return UserError(
            f"{self.option}: {path.name} cannot be read ({first_line(error)}); name whole "
            "files of weights."
        )


def _from_hub(place: str, name: str, home: Home, revision: str) -> tuple[Path, str]:
    """Return the path of a place on the hub, fetched where it is not here, and its commit."""
    matched = _REPOSITORY.fullmatch(place)
    if matched is None or (matched[3] and not is_relative(matched[3])):
        raise UserError(
            f"{name} names no weights on the Hugging Face hub; write hf://OWNER/NAME@REVISION."
        )
    repository, asked, inside = matched.groups()
    cache = home.caches / "weights"
    filled = cache / repository
    if asked:
        filled = cache / f"{repository}@{asked}"
    if filled.is_dir():
        return filled / (inside or ""), ""
    try:
        folder = _fetched(repository, PurePosixPath(inside or ""), cache / "hub", revision or asked)
    except NotFetched as error:
        raise UserError(
            f"{name}: the Hugging Face hub does not give it ({error}); fetch its files on a "
            f"machine that reaches the hub, and put them into {filled}."
        ) from None
    return folder / (inside or ""), folder.name


def _fetched(repository: str, inside: PurePosixPath, cache: Path, revision: str | None) -> Path:
    """Fetch a file of a repository, or the weights of a folder of it, safetensors before others."""
    is_file = inside.suffix in (".safetensors", *SUFFIXES)
    below = inside
    if is_file or inside.name.endswith(INDEX):
        below = inside.parent

    def fetch(patterns: Sequence[str]) -> Path:
        return fetch_repository(
            repository, [str(below / each) for each in (*patterns, *BESIDE)], cache, revision
        )

    if is_file:
        return fetch([inside.name])
    folder = fetch(SAFE)
    if any((folder / below).glob(SAFE[0])):
        return folder
    return fetch(PICKLED)


def _in_folder(folder: Path, name: str) -> Path:
    """Return the one file of weights in a folder, safetensors before others, an index before its
    shards.
    """
    for patterns in (
        [f"{each}{INDEX}" for each in SAFE],
        SAFE,
        [f"{each}{INDEX}" for each in PICKLED],
        PICKLED,
    ):
        found = sorted(chain.from_iterable(map(folder.glob, patterns)))
        if len(found) > 1:
            listed = ", ".join(path.name for path in found[:MOST_LISTED])
            raise UserError(
                f"{name} holds {len(found)} files of weights ({listed}); name one of them."
            )
        if found:
            return found[0]
    raise UserError(
        f"{name} holds no file of weights (*.safetensors, {', '.join(PICKLED)}); name one that "
        "does."
    )


def _skipped_beside(taken: Path, paths: Sequence[Path]) -> tuple[Selection, ...]:
    """Return what was not taken of the files of weights in a folder beside `taken` and its shards
    `paths`; () for none.
    """
    of_taken = {taken.name, *(path.name for path in paths)}
    patterns = (*SAFE, *PICKLED, f"*{INDEX}")
    beside = {path.name for path in chain.from_iterable(map(taken.parent.glob, patterns))}
    skipped = sorted(beside - of_taken)
    if not skipped:
        return ()
    reason = "safetensors and indexes come first; name another file to take it"
    return (Selection(f"its {taken.name}", tuple(skipped), reason),)


def read_index(path: Path) -> dict[str, str]:
    """Return the file of each tensor that an index of shards lists.

    Raises OSError, and ValueError for what is no index of files beside it.
    """
    content = parse_json(read_plain(path, MAX_TEXT_FILE, follow=True))
    try:
        files = {str(name): file for name, file in content["weight_map"].items()}
        kinds = {Path(each).suffix for each in files.values()}
        is_here = all(Path(each).name == each for each in files.values())
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(first_line(error)) from None
    if len(kinds) != 1 or not is_here:
        raise ValueError("it names no files of this folder")
    return files


def _shards(path: Path, name: str) -> tuple[tuple[Path, ...], Mapping[str, str]]:
    """Return the files of an index and the file of each tensor, or the file itself. Raises
    UserError for an index that leads elsewhere.
    """
    if not path.name.endswith(INDEX):
        if path.suffix not in (".safetensors", *SUFFIXES):
            raise UserError(
                f"{name} is no file of weights (*.safetensors, {', '.join(PICKLED)}); name one."
            )
        return (path,), {}
    try:
        index = read_index(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{name}: {path.name} cannot be read ({first_line(error)}); name a whole folder."
        ) from None
    names = sorted(set(index.values()))
    missing = [each for each in names if not (path.parent / each).exists()]
    if missing:
        listed = ", ".join(missing[:5])
        raise UserError(
            f"{name} lacks {len(missing)} of {len(names)} shards ({listed}); fetch them too."
        )
    return tuple(path.parent / each for each in names), index
