"""Findings of a proof: each comparison with its bound, the verdict over all of them, and their table in 80 columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import wrap
from typing import Any

PHASES = (
    "draws", "loss", "gradient", "norm", "clipping", "learning rate", "moments", "update", "master weights", "average",
    "resume", "evaluation", "sample", "dropout of conditions",
)  # fmt: skip
"""Phases in the order in which a step goes through them, then those of a run's life."""

ALIKE = "alike on all workers"
"""Quantity of a gradient that is compared between the workers."""
MOST_COLUMNS = 80
_PHASE, _WHAT = 21, 30


@dataclass(frozen=True)
class ProofComparison:
    """One quantity of the engine against its reference."""

    phase: str
    """One of `PHASES`."""
    what: str
    """The quantity, in words."""
    distance: float
    """How far the two are apart; 0 or 1 and more for what is compared to the bit (the number of differences)."""
    bound: float
    """Largest distance that rounding explains; 0 for what is compared to the bit."""
    detail: str = ""
    """Clause with what else a reader wants to know; empty for nothing."""
    module: str = ""
    """Path of the module that it is about, `network.blocks.0.mlp`; empty for the whole."""
    size: float = 0.0
    """Size of the reference's own value, in the distance's unit; 0 where there is none."""
    step: int = 0
    """Number of the step that it was compared in, from 1; 0 for what belongs to no step."""

    @property
    def holds(self) -> bool:
        """Return True if the distance is within the bound; a distance that is not a number is not."""
        return self.distance <= self.bound

    @property
    def excess(self) -> float:
        """Distance as a multiple of the bound; 0 for two zeros, infinite where only the bound is 0 or a NaN is met."""
        if self.distance == 0:
            return 0.0
        if not math.isfinite(self.distance) or self.bound == 0:
            return math.inf
        return self.distance / self.bound

    @property
    def relative(self) -> float:
        """Distance relative to the reference's own value, by which modules that are off are ranked."""
        if math.isnan(self.distance):
            return math.inf
        return self.distance / self.size if self.size else self.distance


@dataclass(frozen=True)
class ProofRow:
    """All comparisons of one quantity, over modules, as one line of a table."""

    phase: str
    what: str
    worst: ProofComparison
    """The comparison with the largest distance against its bound."""
    num: int
    num_off: int

    @property
    def holds(self) -> bool:
        """Return True if every comparison of the line holds."""
        return self.num_off == 0


@dataclass(frozen=True)
class Proof:
    """All comparisons of a spec's engine with its reference."""

    comparisons: tuple[ProofComparison, ...]
    spec: str
    """Name of the experiment."""
    engine: str
    """The engine as configured, in words: device, workers, ZeRO stage, precision."""
    scaled_down: str
    """Sentence on what was made smaller than the spec has it; empty where the spec itself was proved."""
    seconds: float
    """Wall time."""
    made_by: Mapping[str, str] = field(default_factory=dict)
    """Facts of the code that was proved: `date`, `spec_hash`, `code`, and versions of libraries by name."""

    @property
    def holds(self) -> bool:
        """Return True if there are comparisons and all of them hold."""
        return bool(self.comparisons) and all(each.holds for each in self.comparisons)

    @property
    def off(self) -> list[ProofComparison]:
        """Comparisons that do not hold, in the order of `PHASES`.

        What no resume can cause comes before all: the first step, and a gradient that differs from worker to worker;
        then what a resume loads and consumes, as the other steps begin from a state that was loaded. Within a phase
        what is compared to the bit comes first, in the order of its comparisons, then what is furthest off.
        """
        return sorted((each for each in self.comparisons if not each.holds), key=_order)

    @property
    def first_off(self) -> str:
        """Sentence on the first phase that is off, and its module where it has one; empty where all holds."""
        if not self.off:
            return ""
        first = self.off[0]
        of_phase = [each for each in self.comparisons if (each.phase, each.what) == (first.phase, first.what)]
        num_off = sum(not each.holds for each in of_phase)
        where = ""
        if first.module:
            others = f", the furthest of {num_off} modules that are off" if num_off > 1 else ""
            where = f" of {first.module}{others}"
            if num_off == len(of_phase) > 1:
                where = f" of all {num_off} modules, furthest {first.module}"
        amount = f"by {first.distance:.3g} where rounding explains {first.bound:.3g}"
        if first.bound == 0:
            amount = f"in {first.distance:.0f} places" if first.distance >= 1 else f"by {first.distance:.3g}"
        detail = f" ({first.detail})" if first.detail else ""
        what = "" if first.what in (first.phase, "") else f", {first.what}"
        return f"First off: {first.phase}{what}{where}, {amount}{detail}."

    @property
    def verdict(self) -> str:
        """Sentence on the whole."""
        num = len(self.comparisons)
        if not num:
            return "Nothing was compared."
        if self.holds:
            return f"All {num:,} comparisons hold: the engine computes what the spec says."
        return f"{len(self.off):,} of {num:,} comparisons are off. {self.first_off}"

    @property
    def summary(self) -> str:
        """Clause on the whole for a tag: verdict, engine, code and date."""
        num, facts = len(self.comparisons), self.made_by
        verdict = f"holds, {num:,} comparisons" if self.holds else f"{len(self.off):,} of {num:,} comparisons are off"
        parts = [verdict, self.engine, self.scaled_down.rstrip(".")]
        code = f"code {facts['code'][:12]}, torch {facts['torch']}, {facts['date']}" if facts else ""
        return "; ".join(filter(None, [*parts, code]))

    def rows(self) -> list[ProofRow]:
        """Return one line for each quantity, in the order of `PHASES`."""
        groups: dict[tuple[str, str], list[ProofComparison]] = {}
        for each in self.comparisons:
            groups.setdefault((each.phase, each.what), []).append(each)
        rows = [
            ProofRow(phase, what, worst_of(group), len(group), sum(not each.holds for each in group))
            for (phase, what), group in groups.items()
        ]
        return sorted(rows, key=lambda row: _place(row.phase))

    def to_dict(self) -> dict[str, Any]:
        """Return the proof as JSON takes it: numbers that are not finite become words."""
        return {
            "holds": self.holds, "verdict": self.verdict, "spec": self.spec, "engine": self.engine,
            "twin": self.scaled_down, "seconds": round(self.seconds, 3), "made_by": dict(self.made_by),
            "comparisons": [
                {
                    name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
                    for name, value in asdict(each).items()
                } | {"holds": each.holds}
                for each in self.comparisons
            ],
        }  # fmt: skip


def worst_of(comparisons: Sequence[ProofComparison]) -> ProofComparison:
    """Return the comparison that is furthest off, or closest to its bound where all hold."""
    return max(comparisons, key=lambda each: (not each.holds, each.excess, each.relative))


def _order(each: ProofComparison) -> tuple[bool, bool, int, float]:
    """Return the sort key of what is off; see `Proof.off`."""
    is_steps_own = each.step == 1 or each.what == ALIKE  # which may put every comparison of a resume off
    # What a resume begins with: its losses and its last state may be off by faults of each step.
    begins = ("after loading", "samples consumed", "draws", "parts of the state saved")
    is_resumed = each.phase == "resume" and each.what.endswith(begins)
    rank = -each.relative if each.bound else -math.inf
    return not is_steps_own, not is_resumed, _place(each.phase), rank


def _place(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else len(PHASES)


def proof_lines(proof: Proof) -> list[str]:
    """Return the lines of a proof: what was proved, a line for each quantity, the verdict."""
    head = f"  {'phase':<{_PHASE}}{'compared':<{_WHAT}}{'distance':>9}{'bound':>9}  verdict"
    smaller = _folded(proof.scaled_down) if proof.scaled_down else []
    title = _folded(f"{proof.spec}: {proof.engine}; {proof.seconds:.0f} s.")
    return [*title, *smaller, head, *(_row_line(row) for row in proof.rows()), *_folded(proof.verdict)]


def _row_line(row: ProofRow) -> str:
    """Format a line; of several comparisons the one that is closest to its bound, or furthest beyond."""
    number = f" ({row.num:,})" if row.num > 1 else ""
    what = row.what if len(row.what) + len(number) < _WHAT else f"{row.what[: _WHAT - len(number) - 2]}…"
    verdict = "holds" if row.holds else f"OFF: {row.num_off}"
    bound = "exact" if row.worst.bound == 0 else f"{row.worst.bound:.1e}"
    distance = "0" if row.worst.distance == 0 else f"{row.worst.distance:.1e}"
    return f"  {row.phase:<{_PHASE}}{what + number:<{_WHAT}}{distance:>9}{bound:>9}  {verdict}"


def _folded(text: str) -> list[str]:
    """Break a line between words, so that it fits; a path longer than a line is broken too."""
    return wrap(text, MOST_COLUMNS, subsequent_indent="  ")
