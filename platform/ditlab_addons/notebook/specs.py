"""Experiments and sweeps as notebooks show them: what differs from the defaults."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from ditlab.spec.overrides import spec_fields
from ditlab_addons.notebook.html import card, paragraph, table

if TYPE_CHECKING:
    from ditlab.spec.experiment import Experiment
    from ditlab.spec.sweep import Sweep


def experiment_page(experiment: Experiment) -> str:
    """Length, family and hash of an experiment, and the fields that differ from the defaults."""
    training = experiment.training
    if training.steps:
        length = f"{training.steps:,} steps"
    else:
        length = f"{training.epochs} epochs"
    samples = f"{length} of {experiment.batch.size:,} samples"
    about = f"family {experiment.model.family}, {samples}, content {experiment.content_hash()}"
    return card(experiment.name, about, [differing_fields(experiment)])


def sweep_page(sweep: Sweep) -> str:
    """Fields of a sweep that differ from the defaults, the axes among them."""
    return card(
        sweep.name,
        f"sweep over {len(sweep.space)} axes",
        [differing_fields(sweep, ("name", "base"))],
    )


def differing_fields(spec: BaseModel, without: Collection[str] = ("name",)) -> Markup:
    """The fields that differ from the defaults, a row each; but for those of the sections
    `without`.
    """
    fields = [field for field in spec_fields(spec) if field[0].partition(".")[0] not in without]
    rows = [
        [path, value_text(value), "" if default is PydanticUndefined else value_text(default)]
        for path, value, default in fields
        if value != default
    ]
    caption = paragraph(f"{len(rows)} of {len(fields)} fields differ from the defaults:")
    return caption + table(["field", "value", "default"], rows)


def value_text(value: Any) -> str:
    """A value in one line, nearly as YAML writes it."""
    if isinstance(value, str):
        return value
    return json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)
