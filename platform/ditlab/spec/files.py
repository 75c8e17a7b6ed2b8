"""From files to an experiment: `extends`, `--set`, validation; and specs that are kept with a run.

The last line of a kept spec is its hash, so that an edit by hand is noticed, and said.
"""

from __future__ import annotations

import copy
import errno
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

from ditlab.errors import UserError, first_line, nearest_file
from ditlab.home import resolve_user_file, resolve_user_path
from ditlab.parts import FileKind, absent_part, file_kinds
from ditlab.spec.experiment import Experiment, class_for, validate_experiment
from ditlab.spec.overrides import assign, merge, parse_overrides
from ditlab.spec.uris import has_one_slash, is_uri, map_texts, path_field, variable_in
from ditlab.spec.values import format_value, printable_sentence
from ditlab.spec.yaml_text import MAX_BYTES, dump_yaml, parse_yaml
from ditlab.storage.files import is_as_stamped, is_edited, stamped
from ditlab.storage.plain_files import MIB, UnusableFile, read_plain

SpecT = TypeVar("SpecT")
_log = logging.getLogger("ditlab.spec")
FILES = ("model.init.from", "evaluation.features.weights", "evaluation.features.reference")
"""Fields with files whose own name tells their kind, whatever they link to."""
OUTPUTS = ("checkpoint.storage",)
"""Fields with folders that a run makes."""
STANDARD_INPUT = Path("-")
"""SPEC on a command line, for the spec that is piped in; paths in it are taken from the working
directory.
"""


def is_sweep(spec: Path | Mapping[str, Any]) -> bool:
    """Return True if a file, or its mapping, is a sweep: it has a `base`. Raises UserError for an
    unreadable file.
    """
    return "base" in (read_with_parents(spec) if isinstance(spec, Path) else spec)


def find_file_kind(path: Path) -> FileKind | None:
    """Return the kind of a file that is neither an experiment nor a sweep, by the field at its top.

    Raises UserError for an unreadable file, and where the add-on of the kind is not here.
    """
    return _kind_of_mapping(read_with_parents(path), spec_name(path))


def _kind_of_mapping(mapping: Mapping[str, Any], source: str) -> FileKind | None:
    for name, kind in file_kinds().items():
        if name in mapping:
            return kind
    for name in mapping:
        reason = absent_part("file's field", name)
        if reason:
            raise UserError(f"{source}: {reason}")
    return None


def refuse_other_kinds(mapping: Mapping[str, Any], source: str) -> None:
    """Raise UserError, beginning with `source`, for the mapping of a file that is neither an
    experiment nor a sweep.
    """
    kind = _kind_of_mapping(mapping, source)
    if kind is not None:
        raise UserError(
            f"{source}: a file with `{kind.name}` is a {kind.noun}; use `ditlab {kind.command}`."
        )


def command_for(path: Path) -> str:
    """Return the command that runs a file: `train`, `tune`, or that of another kind of files.

    Raises UserError as `find_file_kind` does.
    """
    kind = find_file_kind(path)
    if kind is not None:
        return kind.command
    return "tune" if is_sweep(path) else "train"


# a command reads a spec and its parents several times over
_parsed = lru_cache(maxsize=64)(parse_yaml)


def read_with_parents(path: Path) -> dict[str, Any]:
    """The file's mapping, merged over that of the file that its `extends` names, and so on up;
    relative paths in each are taken from its folder. A sweep's `base`, where it names a file,
    becomes that file's path from the working directory."""
    merged: dict[str, Any] = {}
    for _, mapping in reversed(_lineage(path)):
        merged = merge(merged, mapping)
    return merged


def spec_files(path: Path) -> list[Path]:
    """Every file that a spec is read from, absolute: its own, its parents', of a sweep its base's.
    Raises UserError where one cannot be read."""
    files = [file for file, _ in _lineage(path)]
    base = read_with_parents(path).get("base")
    return [*files, *(spec_files(Path(base)) if isinstance(base, str) else [])]


def relative_inputs(path: Path, overrides: Sequence[str] = ()) -> dict[str, Path]:
    """Files and folders that relative paths of a spec and of its overrides name, by field, where
    they are there: a copy of the folder has to hold them.
    """
    found: dict[str, Path] = {}

    def note(folder: Path, field: str, text: str) -> str:
        place = _resolve_path(field, text, folder, "")
        if place != text and path_field(field) not in OUTPUTS and Path(place).exists():
            found[f"{field}={text}"] = Path(place)
        return text

    for file in spec_files(path):
        map_texts(read_mapping(file, ""), partial(note, file.parent))
    for each in parse_overrides(overrides):
        map_texts(each.value, partial(note, Path()), each.path)
    return found


def read_mapping(path: Path, named_by: str) -> dict[str, Any]:
    """Read the mapping of one YAML file, without its parents. Raises UserError for any other file.
    `named_by` is the field that names the file: `child.yaml: extends=base.yaml`."""
    shown = spec_name(path)
    try:
        if path == STANDARD_INPUT:
            content = _read_stream(sys.stdin)
        else:
            content = read_plain(path, MAX_BYTES, follow=True)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, and a path with a NUL character
        subject = f"{shown}:"
        absent = "no such file"
        remedy = "give the path of an experiment's YAML, in UTF-8"
        if named_by:
            subject = named_by
            absent = "names no file"
            remedy = "give a path relative to this file"
        if isinstance(error, FileNotFoundError):
            problem = f"{absent}{nearest_file(path)}"
        elif isinstance(error, UnicodeDecodeError):
            problem = f"cannot be read as text (no UTF-8: {error.reason})"
        else:
            problem = f"cannot be read as text ({first_line(error)})"
        raise UserError(f"{subject} {problem}; {remedy}.") from None
    if is_edited(content):
        _warn_once(
            f"{path} was changed since DiTLab wrote it, by hand or by damage; it counts as it "
            "is now"
        )
    mapping = copy.deepcopy(_parsed(text, shown))
    if not isinstance(mapping, dict) or not all(isinstance(key, str) for key in mapping):
        raise UserError(f"{shown}: must be a mapping with names as keys, such as `name: my-run`.")
    return mapping


def spec_name(path: Path) -> str:
    """Name of a spec in messages: its path, or `standard input` for `-`."""
    if path == STANDARD_INPUT:
        return "standard input"
    return printable_sentence(path)


@lru_cache(maxsize=1)  # a command reads its spec several times over
def _read_stream(stream: TextIO | None) -> bytes:
    if stream is None:  # Python's, where it was closed
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return stream.buffer.read(MAX_BYTES + 1)


@cache
def _warn_once(message: str) -> None:
    _log.warning("%s", message)


def resolve_paths(mapping: Mapping[str, Any], folder: Path, source: str = "") -> dict[str, Any]:
    """The mapping of an experiment or a sweep with its relative paths made absolute, from `folder`
    on.

    A plain name of data is that of a store in the home, and an encoder that is no folder has a name
    on the hub. `source` is the file that the mapping was read from, "" for a command line.
    """
    return dict(map_texts(mapping, lambda path, text: _resolve_path(path, text, folder, source)))


def _resolve_path(path: str, text: str, folder: Path, source: str) -> str:
    field = path_field(path)
    if not field or not _is_relative(text):
        return text
    if field.startswith("data.") and "/" not in text and text not in (".", ".."):
        return text  # the name of a store in the home
    try:
        resolve = resolve_user_file if field in FILES else resolve_user_path
        place = resolve(resolve_user_path(folder) / text)
    except UserError as error:
        raise UserError(f"{source or '--set'}: {path}={error}") from None
    is_on_hub = field.startswith(("encoders.", "evaluation.features.")) and not text.startswith(".")
    if is_on_hub and not os.path.exists(place):  # noqa: PTH110 (Path's own may raise)
        return text
    return str(place)


def _is_relative(text: str) -> bool:
    """Return True for a relative path; false for a URI, and for what is refused as a path."""
    if not text or not text.isprintable() or text[0] in "/~":
        return False
    return not (is_uri(text) or has_one_slash(text) or variable_in(text))


def _lineage(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """(file, absolute; its own mapping) of a file and its parents, itself first."""
    chain: list[tuple[Path, dict[str, Any]]] = []
    current = path
    named_by = ""
    while True:
        mapping = resolve_paths(read_mapping(current, named_by), current.parent, spec_name(current))
        file = Path(os.path.realpath(current))
        known = [each for each, _ in chain]
        if file in known:
            circle = [*known[known.index(file) :], file]
            loop = " -> ".join(printable_sentence(each.name) for each in circle)
            raise UserError(f"{named_by} closes a circle ({loop}); remove one of these `extends`.")
        chain.append((file, mapping))
        parent = mapping.pop("extends", None)
        if isinstance(mapping.get("base"), str):
            mapping["base"] = str(current.parent / mapping["base"])
        if parent is None:
            return chain
        if not isinstance(parent, str):
            raise UserError(
                f"{spec_name(current)}: extends={format_value(parent)} must be one file name."
            )
        named_by = f"{spec_name(current)}: extends={printable_sentence(parent)}"
        current = current.parent / parent


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment that a YAML file and its parents describe, with `--set` overrides
    (`a.b=value`) on top. Raises UserError, naming file and field, for anything wrong in them."""
    mapping = read_with_parents(path)
    if not is_sweep(mapping):
        mapping = resolve_paths(assign(mapping, parse_overrides(overrides), class_for), Path())
    return build_experiment(mapping, spec_name(path))


def validated(experiment: Experiment | str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Return an experiment itself, or load that of a YAML file. Raises UserError, also for
    overrides without a file.
    """
    if not isinstance(experiment, Experiment):
        return load_experiment(Path(experiment), overrides)
    refuse_overrides(overrides)
    return experiment


def refuse_overrides(overrides: Sequence[str]) -> None:
    """Raise UserError for overrides of something that is no file."""
    if overrides:
        raise UserError(
            f"overrides={list(overrides)} change a YAML file, and none is given; pass its path."
        )


def build_experiment(mapping: Mapping[str, Any], source: str) -> Experiment:
    """Validates a resolved mapping. Raises UserError with one line per mistake, each beginning with
    `source`.
    """
    refuse_other_kinds(mapping, source)
    if is_sweep(mapping):
        raise UserError(
            f"{source}: a file with `base` is a sweep; name an experiment, or use `ditlab tune`."
        )
    try:
        return validate_experiment(mapping)
    except UserError as error:
        lines = [f"{source}: {line}" for line in str(error).splitlines()]
        raise UserError("\n".join(lines)) from None


def encode_recorded(mapping: Mapping[str, Any]) -> bytes:
    """The YAML of a resolved spec, with its hash in the last line."""
    return stamped(dump_yaml(mapping)).encode()


def load_recorded_experiment(path: Path) -> Experiment:
    """The experiment in a run's `spec.yaml`. Raises UserError as `load_recorded`; logs a warning
    after an edit.
    """
    return load_recorded(path, load_experiment)


def load_recorded(path: Path, load: Callable[[Path], SpecT]) -> SpecT:
    """Load a spec of a run with `load`. Logs a warning after an edit. Raises UserError as `load`
    does, for a link in the file's place, and for a file that a newer version wrote."""
    try:
        content = read_plain(path, MIB)
    except UnusableFile as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); put the run's own file there."
        ) from None
    except OSError:
        content = b""  # `load` says what is wrong
    try:
        return load(path)
    except UserError as error:
        if not is_as_stamped(content):
            raise
        mistake = str(error).splitlines()[0].removeprefix(f"{path}: ").split(";")[0].rstrip(".")
        raise UserError(
            f"{path}: was written by a DiTLab, or with packages, newer than those here "
            f"({mistake}); open the run with them."
        ) from None
