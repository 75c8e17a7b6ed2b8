"""Result of an export: its files, and the run and step that they come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ExportedWeights:
    """Files of an export; `load_export(folder)` reads them."""

    run_id: str
    step: int
    """Optimiser step of the weights."""
    folder: Path
    files: list[Path]
    """`weights.safetensors`, `spec.yaml`, and `tokenizer.json` for a model of text."""

    def to_dict(self) -> dict[str, Any]:
        """The export in JSON's types, for `--json`."""
        return {"run_id": self.run_id, "step": self.step, "files": [str(file) for file in self.files]}
