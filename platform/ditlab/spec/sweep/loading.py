"""From files to a sweep: `extends`, `base`, `--set`, validation of the sweep's own fields."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model

from denoisers.contract import Spec
from ditlab.errors import UserError, nearest
from ditlab.spec.format_value import printable_sentence
from ditlab.spec.reading.files import is_sweep, read_mapping, read_with_parents
from ditlab.spec.reading.messages import explain
from ditlab.spec.reading.overrides import Assignment, assign, parse_overrides
from ditlab.spec.sweep.axes import Axis
from ditlab.spec.sweep.spec import Sweep


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
    named_by = f"{printable_sentence(path)}: base={printable_sentence(base)}"
    read_mapping(base, named_by)
    mapping = read_with_parents(base)
    if is_sweep(mapping):
        raise UserError(f"{named_by} is a sweep itself; name an experiment.")
    return mapping
