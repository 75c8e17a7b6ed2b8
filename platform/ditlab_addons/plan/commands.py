"""`ditlab plan`: a plan as a table, as lines and as JSON; `ditlab profile`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from ditlab.cli import options, output
from ditlab.cli.progress import ProgressBars
from ditlab.reports.formatting import format_duration, format_number, terminal_table
from ditlab.spec.values import format_bytes, format_value

if TYPE_CHECKING:
    from ditlab_addons.plan.plan import Plan, PlannedSetting
    from ditlab_addons.plan.profiling import Profile

_OWN = ("gpus", "gpu", "gpu_memory", "measure", "price", "as_json")
MOST_ROWS = 12
"""Rows of a table of modules or operators."""


@click.command()
@options.spec
@click.option("--gpus", type=int, metavar="N", help="Workers, one a GPU (default: the spec's).")
@click.option(
    "--gpu",
    metavar="NAME",
    help="Kind of GPU: H100, H200, A100, L40S, ..., or cpu (default: the spec's).",
)
@click.option(
    "--gpu-memory",
    metavar="SIZE",
    help="Memory of each GPU, such as 80GiB (default: that of its kind).",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Take a few real steps on this machine, and plan with their rates.",
)
@click.option(
    "--price",
    type=click.FloatRange(min=0),
    metavar="P",
    help="Price of a GPU hour, for the run's cost.",
)
@options.overrides
@options.as_json
def plan(
    spec: Path,
    gpus: int | None,
    gpu: str | None,
    gpu_memory: str | None,
    measure: bool,
    price: float | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Forecast memory, time and cost of a run under every ZeRO setting, before a GPU is taken."""
    with ProgressBars("loading PyTorch") as progress:
        from ditlab_addons.plan import functions

        progress.stage("measuring steps" if measure else "tracing the network")
        found = functions.plan(
            spec,
            overrides,
            gpus=gpus,
            gpu=gpu,
            gpu_memory=gpu_memory,
            measure=measure,
            say=progress.say,
        )
    terminal = output.console(as_json)
    terminal.print(plan_table(found))
    for line in plan_lines(found, price):
        if as_json:
            output.say(line)
        else:
            terminal.print(line, soft_wrap=False)
    output.emit(plan_dict(found, price), as_json)
    again = (spec, *output.repeated_arguments("spec", *_OWN))
    if found.recommended is None:  # a line above says what would fit
        output.hint(as_json, "params", *again)
        return
    changes: list[str] = []
    for path, value in found.changes.items():
        changes += ["--set", f"{path}={format_value(value)}"]
    output.hint(as_json, "train", *again, *changes)


def plan_table(plan: Plan) -> Table:
    """Memory and time by setting; sizes in GiB. The state is parameters, gradients, moments and
    average.
    """
    heads = ("state", "act.", "work", "total", "host", "micro", "most", "ms")
    columns = {"ZeRO": "id", "ckpt": "id"}
    memory = format_bytes(plan.device.memory)
    title = f"{plan.experiment.name}: GiB on each of {plan.workers} x {plan.device.name} ({memory})"
    table = terminal_table(
        columns | dict.fromkeys(heads, "number"), title=title, optional=("host", "work", "act.")
    )
    chosen = plan.recommended
    for each in plan.settings:
        peak = each.memory.peak
        is_chosen = bool(chosen and chosen.label == each.label)
        state = peak.parameters + peak.encoders + peak.gradients + peak.optimizer + peak.average
        sizes = (state, peak.activations, peak.workspace, each.total, each.memory.host)
        *parts, total, host = (format_number(size / 2**30) for size in sizes)
        table.add_row(
            f"{each.zero}{'*' if is_chosen else ''}",
            "yes" if each.checkpointing else "no",
            *parts,
            total if each.fits else f">{total}",
            host,
            f"{each.micro:,}",
            f"{each.largest_micro:,}" if each.largest_micro else "none",
            format_number(1000 * each.seconds.total),
            style="bold" if is_chosen else "",
        )
    return table


def plan_lines(plan: Plan, price: float | None) -> list[str]:
    """Sentences on the recommended setting, time, cost and files."""
    chosen = plan.recommended or plan.own
    flops = chosen.flops
    seconds = chosen.seconds.total
    why = plan.why
    if plan.recommended:
        why = f"recommended: {chosen.label}, micro-batches of {chosen.micro:,}: {why}"
    lines = [
        (
            "ZeRO: stage and offload (all: parameters too). act.: kept for the backward pass. "
            "work: temporary tensors and buffers. total: the peak with a margin. micro: "
            "samples at once; most: largest that fits. ms: of a step."
        ),
        why,
    ]
    if plan.frozen:
        lines.append(
            f"parameters: {plan.parameters - plan.frozen:,} trainable, {plan.frozen:,} frozen"
        )
    more = {
        "recomputed": flops.recomputed,
        "of frozen encoders": plan.encoder_flops,
        "of Muon": plan.optimizer_flops,
    }
    beside = "".join(f", {count / 1e12:,.3g} {name}" for name, count in more.items() if count)
    lines.append(
        f"step: {flops.model / 1e12:,.3g} TFLOP{beside}, {format_number(1000 * seconds)} ms, "
        f"{format_number(plan.experiment.batch.size / seconds)} samples/s; rates: "
        f"{plan.rates.source}"
    )
    whole = plan.run_seconds(chosen)
    hours = plan.gpu_hours(chosen)
    if whole is None or hours is None:
        lines.append("run: of unknown length, as the data that its epochs are of are not here")
    else:
        unit = "GPU" if plan.device.is_gpu else "worker"
        cost = "" if price is None else f", cost {hours * price:,.2f}"
        lines.append(
            f"run: {plan.steps:,} steps, {format_duration(whole)}, {hours:,.3g} {unit} "
            f"hours{cost}, without evaluations and saves"
        )
    data = "" if plan.data_bytes is None else f"; data {format_bytes(plan.data_bytes)}"
    number = "" if plan.snapshots is None else f"{plan.snapshots} of "
    kept = ""
    if plan.snapshot_bytes:
        kept = f"; snapshots of averages {number}{format_bytes(plan.snapshot_bytes)}"
    lines.append(
        f"files: checkpoint {format_bytes(plan.checkpoint_bytes)}, {plan.checkpoints} "
        f"kept{kept}{data}; host copy of a checkpoint "
        f"{format_bytes(chosen.memory.checkpoint_copy)} a worker"
    )
    return [*lines, f"not counted: {'; '.join(plan.left_out)}"]


def plan_dict(plan: Plan, price: float | None) -> dict[str, Any]:
    """The plan as `--json` prints it: `fits`, `per_gpu_bytes` and `step_seconds` are of the spec as
    it is.
    """
    own = plan.own
    best = plan.recommended or own
    hours = plan.gpu_hours(best)
    same = (
        "parameters",
        "frozen",
        "why",
        "steps",
        "checkpoint_bytes",
        "snapshot_bytes",
        "snapshots",
        "data_bytes",
        "encoder_flops",
        "optimizer_flops",
    )
    return {
        "fits": own.fits,
        "per_gpu_bytes": own.total,
        "step_seconds": own.seconds.total,
        "gpu": plan.device.name,
        "gpus": plan.workers,
        "gpu_memory": plan.device.memory,
        "rates": plan.rates.source,
        "own": _setting_dict(own),
        "recommended": plan.recommended and _setting_dict(best),
        "settings": [_setting_dict(each) for each in plan.settings],
        "samples_per_second": plan.experiment.batch.size / best.seconds.total,
        "run_seconds": plan.run_seconds(best),
        "gpu_hours": hours,
        "device": "GPU" if plan.device.is_gpu else "core",
        "device_hours": plan.device_hours(best),
        "cost": None if price is None or hours is None else hours * price,
        "checkpoints_kept": plan.checkpoints,
        "left_out": list(plan.left_out),
        "changes": plan.changes,
        **{name: getattr(plan, name) for name in same},
    }


def _setting_dict(setting: PlannedSetting) -> dict[str, Any]:
    worker = setting.memory
    parts: dict[str, Any] = {
        name: getattr(worker, name) for name in ("passes", "update", "evaluation")
    }
    parts |= {"flops": setting.flops, "seconds": setting.seconds}
    return {
        **asdict(setting.zero),
        "activation_checkpointing": setting.checkpointing,
        "per_gpu_bytes": setting.total,
        "margin_bytes": setting.margin,
        "host_bytes": worker.host,
        "checkpoint_copy_bytes": worker.checkpoint_copy,
        "peak": worker.peak_phase,
        "step_seconds": setting.seconds.total,
        **{name: getattr(setting, name) for name in ("micro", "largest_micro", "fits")},
        **{name: asdict(part) for name, part in parts.items()},
    }


@click.command()
@options.spec
@click.option(
    "--steps", type=click.IntRange(1, 20), default=3, show_default=True, help="Profiled steps."
)
@click.option(
    "--out",
    type=options.NewPath(path_type=Path, file_okay=False),
    help="Folder for the trace [default: DITLAB_HOME/caches/profile/NAME].",
)
@options.overrides
@options.as_json
def profile(
    spec: Path, steps: int, out: Path | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Show where the time of a training step goes: by phase, module and operator.

    Takes real steps of one worker on this machine, and leaves no run behind. The trace opens in
    Perfetto and in Chrome (chrome://tracing).
    """
    with ProgressBars("loading PyTorch") as progress:
        from ditlab_addons.plan import functions

        progress.stage("profiling steps")
        found = functions.profile(spec, overrides, num_steps=steps, out=out, say=progress.say)
    terminal = output.console(as_json)
    for table in profile_tables(found):
        terminal.print(table)
    output.print_line(output.short_path(found.trace), as_json)
    output.emit(
        {**asdict(found), "step_seconds": found.seconds, "trace": str(found.trace)}, as_json
    )
    output.hint(as_json, "plan", *output.repeated_arguments("steps", "out", "as_json"))


def profile_tables(profile: Profile) -> Iterator[Table]:
    """Yield the phases of a step, the forward passes of modules (repeated blocks are one row, each
    with those inside it), and operators of a CPU or kernels of a GPU."""
    table = terminal_table({"phase": "text", "ms": "number", "share": "number"})
    for name, seconds in profile.phases.items():
        table.add_row(name, f"{1e3 * seconds:,.2f}", f"{seconds / profile.seconds:.0%}")
    yield table
    for noun, ranges in (("module, forward", profile.modules), ("operator", profile.operators)):
        table = terminal_table(
            {noun: "text", **dict.fromkeys(("calls", "ms", "GFLOP/s"), "number")}
        )
        for each in ranges[:MOST_ROWS]:
            rate = f"{each.flops / each.seconds / 1e9:,.3g}" if each.flops else ""
            table.add_row(each.name, f"{each.num_calls:,.0f}", f"{1e3 * each.seconds:,.2f}", rate)
        yield table
