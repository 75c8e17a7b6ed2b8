"""DiTLab's own exports: `weights.safetensors` beside the `spec.yaml` of the run, as `ditlab export`
writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ditlab.errors import UserError
from ditlab.spec.files import load_experiment
from ditlab.weights.class_names import CLASSES_NAME
from ditlab.weights.files import WeightFiles
from ditlab.weights.published import WeightsFormat, outline
from ditlab.weights.rules import Shapes, Tensors, rename

SPEC = "spec.yaml"


def _model(shapes: Shapes, files: WeightFiles) -> Mapping[str, Any]:
    if not (files.folder / SPEC).exists():
        raise ValueError(
            f"an export has a {SPEC} beside it, and there is none; bring it back, or export "
            "the run again."
        )
    model = load_experiment(files.folder / SPEC).to_dict()["model"]
    return {name: value for name, value in model.items() if name != "init"}


def _classes(files: WeightFiles) -> Sequence[str]:
    try:
        return (files.folder / CLASSES_NAME).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ()


def _recognise(tensors: Tensors, files: WeightFiles) -> bool:
    """Return True where the network of the spec beside the weights has one of the tensors."""
    try:
        return any(name in tensors for name in outline(_model({}, files)).state_dict())
    except (UserError, ValueError):
        return False


FORMAT = WeightsFormat(
    "export",
    "DiTLab's own exports, of any family (`ditlab export RUN --out FOLDER`)",
    (),
    (rename("{name}", "{name}"),),
    _model,
    _recognise,
    classes=_classes,
)
