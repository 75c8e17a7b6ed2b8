"""What a sweep says at its end."""

import shlex
from pathlib import Path

from ditlab.reports.formatting import value_text
from ditlab.reports.sweeps.ranking import ENDED, best
from ditlab.sweeps.finish import SweepResult

ENDINGS = {"finished": "finished", "interrupted": "interrupted", "stopped": "out of time"}


def last_words(result: SweepResult, num_trials: int) -> list[str]:
    """Counts, the best trial, where to read on."""
    summary = result.summary
    counts = {kind: sum(trial.status == kind for trial in summary.trials) for kind in ENDED}
    told = ", ".join(f"{number} {kind}" for kind, number in counts.items() if number) or "none ended"
    lines = [f"sweep {result.sweep_id} {ENDINGS[result.status]}: {told} of {num_trials} trials"]
    if found := best(summary):
        values = ", ".join(f"{path}={value_text(value)}" for path, value in found.values.items())
        metrics = ", ".join(f"{name} {found.metrics[name]:.5g}" for name in summary.metrics)
        lines.append(f"  best: trial {found.number} (run {found.run_id}), {metrics}: {values}")
        lines.append(f"  ditlab train {_short(result.report.parent / 'best.yaml')}")
    lines.append(f"  report: {_short(result.report)}")
    for trial in summary.trials:
        if trial.status == "failed":
            reason = trial.note.partition("\n")[0]
            lines.append(f"  trial {trial.number} (run {trial.run_id}) failed: {reason[:200]}")
    if result.status != "finished":
        lines.append(f"  go on: ditlab tune --resume {result.sweep_id}")
    return lines


def _short(path: Path) -> str:
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
