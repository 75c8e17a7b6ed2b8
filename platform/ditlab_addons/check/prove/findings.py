"""Findings of a proof: each comparison with its bound, the verdict over all of them, and their
table.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from ditlab.reports.formatting import listed, terminal_table
from ditlab_addons.check.report import Report, as_verdict

PHASES = (
    "parameters",
    "order of epochs",
    "draws",
    "laws of draws",
    "loss components",
    "loss",
    "gradient",
    "norm",
    "clipping",
    "learning rate",
    "moments",
    "update",
    "master weights",
    "average",
    "resume",
    "labels",
    "dropout of conditions",
    "held-out rows",
    "held-out draws",
    "evaluation",
    "sample",
    "sampler",
    "guidance",
)
"""Phases in the order in which a step goes through them, then those of a run's life."""
PROPERTIES = frozenset(
    (
        "parameters",
        "order of epochs",
        "laws of draws",
        "loss components",
        "labels",
        "dropout of conditions",
        "held-out rows",
        "held-out draws",
        "sampler",
        "guidance",
    )
)
"""Phases that compare with what spec and data say themselves, not with the reference."""
KeyT = TypeVar("KeyT")


@dataclass(frozen=True)
class ProofComparison:
    """One quantity of the engine against its reference."""

    phase: str
    """One of `PHASES`."""
    what: str
    """The quantity, in words."""
    distance: float
    """How far the two are apart; the number of differences for what is compared to the bit."""
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
    times: int = 1
    """Times that it was compared, step by step; this is the one furthest off, or closest to its
    bound.
    """
    steps: tuple[int, ...] = ()
    """Steps in which it does not hold."""
    stage: int = 0
    """Part of the run in which it was compared, in their order: a load of the state begins a new
    one.
    """

    @property
    def holds(self) -> bool:
        """Return True if the distance is within the bound; a distance that is not a number is
        not.
        """
        return self.distance <= self.bound

    @property
    def is_property(self) -> bool:
        """Return True for a comparison that needs no second implementation."""
        return self.phase in PROPERTIES

    @property
    def relative(self) -> float:
        """Distance relative to the reference's own value, by which modules that are off are
        ranked.
        """
        if math.isnan(self.distance):
            return math.inf
        return self.distance / (self.size or 1.0)

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Sort key by which the comparison that is furthest off, or closest to its bound, is the
        largest.
        """
        excess = math.inf
        if not self.distance:
            excess = 0.0
        elif math.isfinite(self.distance) and self.bound:
            excess = self.distance / self.bound
        return not self.holds, excess, self.relative


class Findings:
    """Comparisons of a run by quantity and module: of many steps' the furthest off, with the number
    of them.
    """

    def __init__(self) -> None:
        self.stage = 0
        """Part of the run that comparisons are added of."""
        self.step = 0
        """Step that comparisons are added of, from 1; 0 for none."""
        self.untold: list[str] = []
        """Sentences on what rounding would hide."""
        self.unchecked: list[str] = []
        """Clauses on properties that were not checked, with the reason."""
        self.untrained: list[str] = []
        """Sentences on parameters that do not train."""
        self._found: dict[tuple[str, str, str], ProofComparison] = {}

    def near(
        self,
        phase: str,
        what: str,
        distance: float,
        bound: float,
        detail: str = "",
        module: str = "",
        size: float = 0,
    ) -> bool:
        """Compare a distance with its bound, by the fields of `ProofComparison`; return True if it
        holds.
        """
        new = ProofComparison(
            phase, what, distance, bound, detail, module, size, self.step, stage=self.stage
        )
        if self.step and not new.holds:
            new = replace(new, steps=(self.step,))
        old = self._found.setdefault((phase, what, module), new)
        if old is not new:
            is_first = not old.holds and old.stage < new.stage
            kept = old if is_first or old.rank >= new.rank else new
            steps = sorted({*old.steps, *new.steps})
            self._found[phase, what, module] = replace(
                kept, times=old.times + 1, steps=tuple(steps)
            )
        return new.holds

    def same(self, phase: str, what: str, wrong: Collection[str], module: str = "") -> bool:
        """Compare to the bit: `wrong` has a clause for each thing that differs; return True if
        there is none.
        """
        return self.near(phase, what, float(len(wrong)), 0.0, next(iter(wrong), ""), module)

    def alike(self, phase: str, what: str, names: Iterable[str]) -> None:
        """Compare tensors to the bit: `names` are those of all that differ."""
        self.same(phase, what, [f"first {name}" for name in names])

    def all(self) -> list[ProofComparison]:
        """Return the comparisons, in the order in which each was made first."""
        return list(self._found.values())


def equal_values(one: Tensor, two: Tensor) -> bool:
    """Return True if two flat tensors are equal to the bit; NaN is equal to itself."""
    return one.dtype == two.dtype and torch.equal(one.view(torch.uint8), two.view(torch.uint8))


def differing(one: Mapping[KeyT, Tensor], two: Mapping[KeyT, Tensor]) -> list[KeyT]:
    """Return the keys of tensors that two mappings do not both have, equal to the bit."""
    return [
        key
        for key in {**one, **two}
        if key not in one or key not in two or not equal_values(one[key], two[key])
    ]


@dataclass(frozen=True)
class Proof(Report):
    """All comparisons of a spec's engine with its reference."""

    comparisons: tuple[ProofComparison, ...]
    spec: str
    """Name of the experiment."""
    engine: str
    """The engine as configured, in words: device, workers, ZeRO stage, precision."""
    seconds: float
    """Wall time."""
    made_by: Mapping[str, str] = field(default_factory=dict)
    """Facts of the code that was proved: `date`, `spec_hash`, `code`, and versions of libraries by
    name.
    """
    untold: tuple[str, ...] = ()
    """Sentences on what rounding would hide: gradients whose scale half precision does not tell
    well enough.
    """
    unchecked: tuple[str, ...] = ()
    """Clauses on properties that were not checked, with the reason."""
    untrained: tuple[str, ...] = ()
    """Sentences on parameters that do not train."""

    @property
    def holds(self) -> bool:
        """Return True if there are comparisons and all of them hold."""
        return bool(self.comparisons) and not self.off

    @property
    def off(self) -> list[ProofComparison]:
        """Comparisons that do not hold: in the order of the run's stages, in each of these in that
        of `PHASES`.

        Within a phase what is compared to the bit comes first, in the order of its comparisons,
        then what is furthest off.
        """

        def order(each: ProofComparison) -> tuple[int, int, float]:
            least = -each.relative if each.bound else -math.inf
            return each.stage, PHASES.index(each.phase), least

        return sorted((each for each in self.comparisons if not each.holds), key=order)

    @property
    def counts(self) -> str:
        """Clause on the numbers of comparisons with the reference, step by step, and of
        properties."""
        numbers = [0, 0]
        for each in self.comparisons:
            numbers[each.is_property] += each.times
        return f"{numbers[0]:,} comparisons with the reference and {numbers[1]:,} properties"

    @property
    def first_off(self) -> str:
        """Sentence on the first phase that is off, with its module and steps; empty where all
        holds.
        """
        if not self.off:
            return ""
        first = self.off[0]
        sentence = f"First off: {', '.join(dict.fromkeys((first.phase, first.what)))}"
        if first.module:
            sentence += f" of {first.module}"
        if 0 < len(first.steps) < first.times:
            sentence += f" in step{'s' * (len(first.steps) > 1)} {listed(first.steps, 12)}"
        sentence += f", by {first.distance:.3g}"
        if first.bound:
            sentence += f" where rounding explains {first.bound:.3g}"
        if first.detail:
            sentence += f" ({first.detail})"
        return f"{sentence}."

    @property
    def _num_off(self) -> str:
        return f"{len(self.off):,} of {len(self.comparisons):,} quantities are off"

    @property
    def verdict(self) -> str:
        """Sentence on the whole."""
        if not self.comparisons:
            return "Nothing was compared."
        if self.holds:
            return f"All {self.counts} hold: the engine computes what the spec says."
        return f"{self._num_off}. {self.first_off}"

    @property
    def summary(self) -> str:
        """Clause on the whole for a tag: verdict, engine, code and date."""
        verdict = f"holds, {self.counts}" if self.holds else self._num_off
        parts = [verdict, self.engine]
        if self.made_by:
            parts.append("code {code:.12}, torch {torch}, {date}".format(**self.made_by))
        return "; ".join(parts)

    def shown(self) -> Iterator[RenderableType]:
        """Yield what was proved, a table with a row for each quantity over its modules, and the
        verdict.
        """
        yield from map(Text, self.untrained)
        yield Text(f"{self.spec}: {self.engine}; {self.seconds:.0f} s.")
        groups: dict[tuple[str, str], list[ProofComparison]] = {}
        for each in sorted(self.comparisons, key=lambda each: PHASES.index(each.phase)):
            groups.setdefault((each.phase, each.what), []).append(each)
        kinds = {
            "phase": "text",
            "compared": "text",
            "distance": "number",
            "bound": "number",
            "verdict": "id",
        }
        table = terminal_table(kinds)
        for (phase, what), group in groups.items():
            worst = max(group, key=lambda each: each.rank)
            num = sum(each.times for each in group)
            bound = f"{worst.bound:.1e}" if worst.bound else "exact"
            table.add_row(
                phase, f"{what} ({num:,})", f"{worst.distance:.1e}", bound, as_verdict(worst.holds)
            )
        yield table
        yield from (Text(f"Not checked: {each}.") for each in self.unchecked)
        yield from map(Text, (*self.untold, self.verdict))

    def to_dict(self) -> dict[str, Any]:
        """Return the proof as JSON takes it: numbers that are not finite become words."""

        def known(value: Any) -> Any:
            if isinstance(value, float) and not math.isfinite(value):
                return str(value)
            return value

        comparisons = [
            {
                **{name: known(value) for name, value in asdict(each).items()},
                "holds": each.holds,
                "is_property": each.is_property,
            }
            for each in self.comparisons
        ]
        return {
            "holds": self.holds,
            "verdict": self.verdict,
            "spec": self.spec,
            "engine": self.engine,
            "seconds": round(self.seconds, 3),
            "made_by": dict(self.made_by),
            "untrained": list(self.untrained),
            "unchecked": list(self.unchecked),
            "untold": list(self.untold),
            "comparisons": comparisons,
        }
