"""What a trial of population-based training took over, from whom, and with which values it went on."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ditlab.home import RunFolder
from ditlab.spec.experiment import Experiment
from ditlab.storage.files import append_json_line, read_json_lines
from ditlab.tracking.journal.writer import JournalWriter


@dataclass(frozen=True)
class Exploit:
    """One takeover."""

    step: int
    """Where the trial was."""
    donor: str
    """Run that it went on from."""
    donor_step: int
    values: dict[str, Any]
    """By axis, after mutation."""
    key: str
    """Of the takeover."""

    def sentence(self) -> str:
        values = ", ".join(f"{path}={_short(value)}" for path, value in self.values.items())
        return f"step {self.step}: took over run {self.donor} at step {self.donor_step}, with {values}"


def note_exploit(folder: RunFolder, exploit: Exploit, before: Experiment) -> None:
    """Keeps it in the run's folder and its tags; numbers also as metrics `pbt/<axis>`, whose curves show them."""
    past = exploits(folder)
    append_json_line(_path(folder), asdict(exploit))
    journal = JournalWriter(folder)
    try:
        if not past:
            journal.metrics(0, _numbers({path: _at(before.to_dict(), path) for path in exploit.values}))
        journal.metrics(exploit.step, _numbers(exploit.values))
        told = "; ".join(one.sentence() for one in (*past, exploit))
        journal.append("tags", values={"ditlab.exploits": told[-5000:]})
    finally:
        journal.close()


def exploits(folder: RunFolder) -> list[Exploit]:
    """All of a run's, in order."""
    return [Exploit(**line) for line in read_json_lines(_path(folder))]


def _path(folder: RunFolder) -> Path:
    return folder.path / "exploits.jsonl"


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"pbt/{path}": float(value)
        for path, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _at(spec: Any, path: str) -> Any:
    for key in path.split("."):
        spec = spec[key]
    return spec


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)
