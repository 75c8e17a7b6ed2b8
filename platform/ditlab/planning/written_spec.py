"""A planned setting as a spec that extends the one it was planned for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ditlab.errors import UserError
from ditlab.planning.plan import Plan
from ditlab.spec.experiment import Experiment
from ditlab.spec.loading import load_experiment
from ditlab.spec.reading.yaml_text import dump_yaml
from ditlab.storage.files import write_durably


def recommended_experiment(plan: Plan) -> Experiment:
    """Return the experiment under the recommended setting. Raises UserError where nothing fits."""
    chosen = plan.recommended
    if chosen is None:
        raise UserError(f"--apply has no setting to write: {plan.why}")
    changes: dict[str, Any] = {
        "engine.zero.stage": chosen.zero.stage,
        "engine.zero.offload": chosen.zero.offload,
        "engine.zero.offload_parameters": chosen.zero.offload_parameters,
        "engine.activation_checkpointing": chosen.checkpointing,
    }
    if chosen.micro != plan.experiment.micro_size:
        changes["batch.micro"] = chosen.micro
    return plan.experiment.replace_all(changes)


def write_recommended(plan: Plan, source: Path, path: Path) -> Path:
    """Write the recommended setting as the spec `path`, which extends the spec `source`, and return it.

    A file that holds the same is left as it is. Raises UserError for any other file at that place, for one that cannot
    be written, and where nothing fits.
    """
    wanted = recommended_experiment(plan)
    changed = _differences(load_experiment(source, ()).to_dict(), wanted.to_dict())
    parent = os.path.relpath(source.absolute(), path.absolute().parent)
    content = dump_yaml({"extends": parent, **changed}).encode()
    try:
        if os.path.lexists(path):
            if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
                return path
            raise UserError(f"--apply {path} exists, and holds something else; name another file, or delete it.")
        return write_durably(path, content)
    except OSError as error:
        raise UserError(f"--apply {path} cannot be written ({error.strerror}); name another place.") from error


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of `new` is not in `old`; a mapping of another kind as a whole."""
    found: dict[str, Any] = {}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            same_kind = all(value.get(name) == before.get(name) for name in ("kind", "family"))
            below = _differences(before, value) if same_kind else dict(value)
            if below:
                found[key] = below
        elif value != before or key not in old:
            found[key] = value
    return found
