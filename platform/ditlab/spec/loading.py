"""From files to an experiment or a sweep: `extends`, `base`, `--set`, validation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model

from denoisers.contract import Spec
from ditlab.errors import UserError, nearest
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.messages import explain
from ditlab.spec.overrides import Assignment, apply_overrides, assign, merge, parse_overrides
from ditlab.spec.sweep.axes import Axis
from ditlab.spec.sweep.sweep import Sweep
from ditlab.spec.wording import shown
from ditlab.spec.yaml_text import parse_yaml


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment that a YAML file and its parents describe, with `--set` overrides (`a.b=value`) on top.

    Raises UserError, naming file and knob, for anything wrong in them.
    """
    mapping = read_with_parents(path)
    _refuse_sweep(mapping, str(path))
    return build_experiment(apply_overrides(mapping, overrides), str(path))


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """The sweep that a YAML file and its parents describe, with `--set` overrides on top.

    Raises UserError, naming file and knob, for what is wrong in its own fields; what they mean for the experiment is
    `ditlab.spec.sweep.space.check_sweep`'s.
    """
    mapping = read_with_parents(path)
    if "base" not in mapping and "space" not in mapping:
        raise UserError(f"{path}: has no `base`, so it is an experiment; name a sweep, or use `ditlab train`.")
    if isinstance(mapping.get("base"), str):
        mapping["base"] = _read_base(Path(mapping["base"]), path)
    return build_sweep(_with_sweep_overrides(mapping, list(parse_overrides(overrides))), str(path))


def is_sweep(spec: Path | Mapping[str, Any]) -> bool:
    """Whether a file, or its mapping, is a sweep: it has a `base`. Raises UserError for a file that cannot be read."""
    return "base" in (read_with_parents(spec) if isinstance(spec, Path) else spec)


def build_experiment(mapping: Mapping[str, Any], source: str) -> Experiment:
    """Validates a resolved mapping. Raises UserError with one line per mistake, each beginning with `source`."""
    _refuse_sweep(mapping, source)
    try:
        cls = class_for(mapping)
        return cls.model_validate(dict(mapping))
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except ValidationError as error:
        raise UserError("\n".join(f"{source}: {line}" for line in explain(error, cls, mapping))) from None


def build_sweep(mapping: Mapping[str, Any], source: str) -> Sweep:
    """Validates a resolved mapping. Raises UserError with one line per mistake, each beginning with `source`."""
    try:
        return Sweep.model_validate(dict(mapping))
    except ValidationError as error:
        lines = explain(error, _with_axes_as_fields(mapping), mapping)
        raise UserError("\n".join(f"{source}: {line}" for line in lines)) from None


def _with_axes_as_fields(mapping: Mapping[str, Any]) -> type[Spec]:
    """The sweep's class with this file's axes as fields of `space`, so that messages find their way into an axis."""
    space = mapping.get("space")
    paths = [path for path in space if isinstance(path, str)] if isinstance(space, dict) else []
    # Pydantic takes no field by the name of a method, or with a leading underscore; no path of an axis has one.
    axes: Any = {path: (Axis, ...) for path in paths if not (path.startswith("_") or hasattr(Spec, path))}
    space_class: Any = create_model("Space", __base__=Spec, **axes)
    return create_model("Sweep", __base__=Sweep, space=(space_class, ...)) if axes else Sweep


def _refuse_sweep(mapping: Mapping[str, Any], source: str) -> None:
    if is_sweep(mapping):
        raise UserError(f"{source}: a file with `base` is a sweep; name an experiment, or use `ditlab tune`.")


def _with_sweep_overrides(mapping: dict[str, Any], overrides: Sequence[Assignment]) -> dict[str, Any]:
    """`trials=4` sets a field of the sweep, `fixed.P=V` one of the experiment, `space.P={...}` an axis, null none."""
    own = [override for override in overrides if not override.path.startswith(("space.", "fixed."))]
    for override in own:
        if override.keys[0] == "base":
            instead = f"fixed.{override.path[5:]}" if override.keys[1:] else "`base` in a file, or fixed.FIELD"
            raise UserError(f"{override.source}: the base is left as it is; set {instead} instead.")
    mapping = assign(mapping, own, lambda _: Sweep)
    for override in overrides:
        if override not in own:
            top, path = override.path.split(".", 1)
            mapping = {**mapping, top: _with_entry(dict(mapping.get(top) or {}), top, path, override)}
    return mapping


def _with_entry(entries: dict[str, Any], top: str, path: str, override: Assignment) -> dict[str, Any]:
    if top == "fixed" or isinstance(override.value, dict):
        return {**entries, path: override.value}
    if override.value is not None:
        raise UserError(
            f"{override.source}: an axis is set as a whole, such as 'space.{path}={{kind: choice, values: [1, 2]}}'; "
            f"for one value in every trial set fixed.{path}, to remove the axis give null."
        )
    if path not in entries:
        raise UserError(f"{override.source}: there is no such axis to remove; {nearest(path, list(entries))}")
    return {name: axis for name, axis in entries.items() if name != path}


def _read_base(base: Path, path: Path) -> dict[str, Any]:
    if not base.is_file():
        raise UserError(f"{path}: base={base} names no file; give a path relative to this file.")
    mapping = read_with_parents(base)
    if is_sweep(mapping):
        raise UserError(f"{path}: base={base} is a sweep itself; name an experiment.")
    return mapping


def read_with_parents(path: Path) -> dict[str, Any]:
    """The file's mapping, merged over that of the file that its `extends` names, and so on up.

    A sweep's `base`, where it names a file, becomes that file's path from the working directory.
    """
    merged: dict[str, Any] = {}
    for _, mapping in reversed(_lineage(path)):
        merged = merge(merged, mapping)
    return merged


def spec_files(path: Path) -> list[Path]:
    """Every file that a spec is read from, absolute: its own, its parents', of a sweep its base's. Raises UserError
    where one cannot be read."""
    files, base = [file for file, _ in _lineage(path)], read_with_parents(path).get("base")
    return [*files, *(spec_files(Path(base)) if isinstance(base, str) else [])]


def _lineage(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """(file, absolute; its own mapping) of a file and its parents, itself first."""
    chain: list[tuple[Path, dict[str, Any]]] = []
    current: Path | None = path
    while current is not None:
        resolved, known = current.resolve(), [file for file, _ in chain]
        if resolved in known:
            loop = " -> ".join(entry.name for entry in [*known[known.index(resolved) :], resolved])
            raise UserError(
                f"{known[-1]}: extends={current.name} closes a circle ({loop}); remove one of these `extends`."
            )
        mapping = _read(current)
        parent = mapping.pop("extends", None)
        if parent is not None and not isinstance(parent, str):
            raise UserError(f"{current}: extends={shown(parent)} must be one file name.")
        if isinstance(mapping.get("base"), str):
            mapping["base"] = str(current.parent / mapping["base"])
        chain.append((resolved, mapping))
        if parent is not None and not (current.parent / parent).is_file():
            raise UserError(
                f"{current}: extends={parent} names no file ({current.parent / parent}); "
                "give a path relative to this file."
            )
        current = None if parent is None else current.parent / parent
    return chain


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give the path of an experiment's YAML.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", error)
        raise UserError(f"{path}: cannot be read as text ({reason}); give the path of an experiment's YAML.") from None
    mapping = parse_yaml(text, str(path))
    if not isinstance(mapping, dict) or not all(isinstance(key, str) for key in mapping):
        raise UserError(f"{path}: must be a mapping with names as keys, such as `name: my-run`.")
    return mapping
