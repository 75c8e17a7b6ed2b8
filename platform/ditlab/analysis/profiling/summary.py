"""A profile as sentences, tables and a picture."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from denoisers.figures import Bars, Figure
from ditlab.analysis.profiling.events import OUTSIDE
from ditlab.analysis.profiling.profile import Profile

MOST_ROWS = 12
"""Rows of a table or bars of a panel; the rest is one more."""
SMALL = 0.01
"""Share of a step below which a kind of work is not told in a sentence."""


def profile_lines(profile: Profile) -> list[str]:
    """Say in sentences where the time of a step goes."""
    total = profile.seconds
    step = sum(profile.phases.values())
    phases = ", ".join(f"{name} {seconds / step:.0%}" for name, seconds in profile.phases.items() if seconds)
    shares = [f"{kind} {seconds / total:.0%}" for kind, seconds in profile.kinds().items() if seconds >= SMALL * total]
    largest = next(each for each in profile.modules if each.path != OUTSIDE)
    copies = f" (all {largest.num_modules})" if largest.num_modules > 1 else ""
    lines = [
        f"A step took {_milliseconds(step)} under the profiler: {phases}.",
        f"Operators took {_milliseconds(total)} of it: {', '.join(shares)}.",
        f"The module that takes most is {largest.path}{copies}: {_milliseconds(largest.seconds)}, "
        f"{largest.seconds / total:.0%} of all operators.",
    ]
    counted = [each for each in profile.operators if each.flops and each.kind in ("matrix products", "convolutions")]
    if counted:
        rate = sum(each.flops for each in counted) / sum(each.seconds for each in counted)
        lines.append(
            f"Matrix products and convolutions ran at {rate / 1e9:,.3g} GFLOP/s, {rate / profile.matrix_rate:.0%} of a "
            f"large matrix product's {profile.matrix_rate / 1e9:,.3g} here."
        )
    return lines


def module_table(profile: Profile) -> Table:
    """Modules without those inside them; repeated blocks are one row."""
    table = _table("module", "copies", "forward ms", "backward ms", "share")
    total = profile.seconds
    for each in profile.modules[:MOST_ROWS]:
        numbers = (f"{1e3 * each.forward:,.2f}", f"{1e3 * each.backward:,.2f}", f"{each.seconds / total:.1%}")
        table.add_row(each.path, f"{each.num_modules}", *numbers)
    if rest := profile.modules[MOST_ROWS:]:
        forward, backward = sum(each.forward for each in rest), sum(each.backward for each in rest)
        numbers = (f"{1e3 * forward:,.2f}", f"{1e3 * backward:,.2f}", f"{(forward + backward) / total:.1%}")
        table.add_row(f"({len(rest)} others)", "", *numbers)
    return table


def operator_table(profile: Profile) -> Table:
    """Operators of a CPU, kernels of a GPU, without those inside them."""
    table = _table("operator", "calls", "ms", "share", "GFLOP/s")
    total = profile.seconds
    for each in profile.operators[:MOST_ROWS]:
        rate = f"{each.flops / each.seconds / 1e9:,.3g}" if each.flops and each.kind != "elementwise" else ""
        name = each.name.removeprefix("aten::")
        table.add_row(name, f"{each.num_calls:,.0f}", f"{1e3 * each.seconds:,.2f}", f"{each.seconds / total:.1%}", rate)
    if rest := profile.operators[MOST_ROWS:]:
        seconds, calls = sum(each.seconds for each in rest), sum(each.num_calls for each in rest)
        table.add_row(f"({len(rest)} others)", f"{calls:,.0f}", f"{1e3 * seconds:,.2f}", f"{seconds / total:.1%}", "")
    return table


def _table(first: str, *columns: str) -> Table:
    table = Table(first, *columns, box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    return table


def profile_figure(profile: Profile) -> Figure:
    """Draw a step by kind of work, and by module."""
    kinds = profile.kinds()
    modules = profile.modules[:MOST_ROWS]
    panels = [
        _bars("By kind of work", list(kinds), list(kinds.values()), profile.seconds),
        _bars("By module", [each.path for each in modules], [each.seconds for each in modules], profile.seconds),
    ]
    return Figure(panels, title=f"{profile.name}: a training step on {profile.device}", columns=1)


def _bars(title: str, names: list[str], seconds: list[float], total: float) -> Bars:
    texts = [f"{each / total:.0%}" for each in seconds]
    return Bars(names, 1e3 * np.array(seconds), title=title, x_label="ms a step", texts=texts)


def profile_dict(profile: Profile) -> dict[str, Any]:
    """The profile in JSON's types; seconds a step."""
    return {
        "steps": profile.num_steps,
        "step_seconds": sum(profile.phases.values()),
        "phases": dict(profile.phases),
        "kinds": profile.kinds(),
        "modules": [asdict(each) for each in profile.modules],
        "operators": [asdict(each) for each in profile.operators],
        "matrix_rate": profile.matrix_rate,
        "trace": str(profile.trace),
    }


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"
