"""`ditlab plan`: a plan as a table, as lines and as JSON; `ditlab profile`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from ditlab.cli import options, output
from ditlab.cli.progress import ProgressBars
from ditlab.errors import UserError
from ditlab.reports.formatting import format_duration, format_number, terminal_table
from ditlab.spec.values import format_bytes

if TYPE_CHECKING:
    from ditlab_addons.plan.functions import PlannedTrials
    from ditlab_addons.plan.plan import Plan, PlannedSetting

_OWN = ("gpus", "gpu", "gpu_memory", "measure", "price", "target", "out", "as_json")


@click.command()
@options.spec
@click.option("--gpus", type=int, metavar="N", help="Workers, one a GPU (default: the spec's).")
@click.option("--gpu", metavar="NAME", help="Kind of GPU: H100, H200, A100, L40S, ..., or cpu (default: the spec's).")
@click.option("--gpu-memory", metavar="SIZE", help="Memory of each GPU, such as 80GiB (default: that of its kind).")
@click.option("--measure", is_flag=True, help="Take a few real steps on this machine, and plan with their rates.")
@click.option("--price", type=float, metavar="P", help="Price of a GPU hour, for the run's cost.")
@click.option(
    "--apply", "target", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the recommended setting as a spec that extends SPEC.",
)  # fmt: skip
@click.option(
    "--out", type=options.NewPath(path_type=Path), metavar="PNG", help="Draw memory by setting into this file."
)
@options.overrides
@options.as_json
def plan(
    spec: Path, gpus: int | None, gpu: str | None, gpu_memory: str | None, measure: bool, price: float | None,
    target: Path | None, out: Path | None, overrides: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Tell memory, time and cost of a run under every ZeRO setting, before a GPU is taken.

    SPEC is an experiment, or a sweep, whose trials are added up.
    """
    from ditlab.spec.files import is_sweep

    _check_options(spec, price, target, out)
    sweeps = is_sweep(spec)
    if sweeps:
        _refuse_files(spec, target, out)
    trials: PlannedTrials | None = None
    with ProgressBars("loading PyTorch") as progress:
        from ditlab_addons.plan import functions
        from ditlab_addons.plan.plan import write_recommended

        progress.stage("measuring steps" if measure else "tracing the network")
        plan_one = partial(functions.plan, gpus=gpus, gpu=gpu, gpu_memory=gpu_memory, measure=measure, say=progress.say)
        if sweeps:
            trials = functions.plan_sweep(spec, overrides, plan_one)
            found = trials.largest
        else:
            found = plan_one(spec, overrides)
        written = write_recommended(found, spec, target) if target else None
        picture = functions.draw_plan(found, out) if out else None
    terminal = output.console(as_json)
    terminal.print(plan_table(found))
    result = plan_dict(found, price)
    lines = plan_lines(found, price)
    if trials:
        result |= _sweep_dict(trials, price)
        lines.append(sweep_line(trials, price))
    for line in lines:
        output.say(line) if as_json else terminal.print(line, soft_wrap=False)
    for file in filter(None, (picture, written)):
        output.print_line(output.short_path(file), as_json)
    output.emit(result | {"picture": picture and str(picture), "applied": written and str(written)}, as_json)
    again = (spec, *output.repeated_arguments("spec", *_OWN))
    if trials:
        output.hint(as_json, "tune", *again, "--dry-run")
    elif found.recommended:
        output.hint(as_json, "train", *((written,) if written else again))
    else:  # a line above says with how many workers, or on which GPU, it would fit
        output.hint(as_json, "params", *again)


def _check_options(spec: Path, price: float | None, target: Path | None, out: Path | None) -> None:
    """Raise UserError for a price that is none, and for files that cannot be written."""
    from ditlab.spec.files import STANDARD_INPUT

    if price is not None and not 0 < price < float("inf"):
        raise UserError(f"--price={price:g} is no price of a GPU hour; give a number above 0, or leave it out.")
    for option, file in (("--apply", target), ("--out", out)):
        if file is not None and not file.name:
            raise UserError(f"{option} {file} names no file; give a file's path.")
    if out is not None and out.suffix.lower() != ".png":
        raise UserError(f"--out {out} is not the name of a PNG; give one that ends in .png.")
    if target is not None and spec == STANDARD_INPUT:
        raise UserError(f"--apply {target} would extend SPEC, which is standard input; name a file as SPEC.")


def _refuse_files(spec: Path, target: Path | None, out: Path | None) -> None:
    """Raise UserError for files that a sweep's plan does not write."""
    if target or out:
        given = "--apply" if target else "--out"
        raise UserError(f"{given} is for an experiment, and {spec} is a sweep; give its base.")


def _cost(hours: float | None, price: float | None) -> float | None:
    """Cost of so many hours; None where hours or price are unknown."""
    return None if price is None or hours is None else hours * price


def _cost_text(hours: float, price: float | None) -> str:
    return "" if price is None else f", cost {hours * price:,.2f}"


def plan_table(plan: Plan) -> Table:
    """Memory and time by setting; sizes in GiB. The state is parameters, gradients, moments and average."""
    heads = ("state", "act.", "work", "total", "host", "micro", "most", "ms")
    columns = {"ZeRO": "id", "ckpt": "id"}
    memory = format_bytes(plan.device.memory)
    title = f"{plan.experiment.name}: GiB on each of {plan.workers} x {plan.device.name} ({memory})"
    table = terminal_table(columns | dict.fromkeys(heads, "number"), title=title, optional=("host", "work", "act."))
    chosen = plan.recommended
    for each in plan.settings:
        peak, is_chosen = each.memory.peak, bool(chosen and chosen.label == each.label)
        state = peak.parameters + peak.encoders + peak.gradients + peak.optimizer + peak.average
        sizes = (state, peak.activations, peak.workspace, each.total, each.memory.host)
        *parts, total, host = (format_number(size / 2**30) for size in sizes)
        table.add_row(
            f"{each.zero}{'*' if is_chosen else ''}", "yes" if each.checkpointing else "no", *parts,
            total if each.fits else f">{total}", host, f"{each.micro:,}",
            f"{each.largest_micro:,}" if each.largest_micro else "none", format_number(1000 * each.seconds.total),
            style="bold" if is_chosen else "",
        )  # fmt: skip
    return table


def plan_lines(plan: Plan, price: float | None) -> list[str]:
    """Sentences on the recommended setting, time, cost and files."""
    chosen = plan.recommended or plan.own
    flops, seconds = chosen.flops, chosen.seconds.total
    lines = [
        "ZeRO: stage and offload (all: parameters too). act.: kept for the backward pass. work: temporary tensors and "
        "buffers. total: the peak with a margin. micro: samples at once; most: largest that fits. ms: of a step.",
        f"recommended: {plan.recommended.label}, micro-batches of {plan.recommended.micro:,}: {plan.why}"
        if plan.recommended
        else plan.why,
    ]
    if plan.frozen:
        lines.append(f"parameters: {plan.parameters - plan.frozen:,} trainable, {plan.frozen:,} frozen")
    more = {"recomputed": flops.recomputed, "of frozen encoders": plan.encoder_flops, "of Muon": plan.optimizer_flops}
    beside = "".join(f", {count / 1e12:,.3g} {name}" for name, count in more.items() if count)
    lines.append(
        f"step: {flops.model / 1e12:,.3g} TFLOP{beside}, {format_number(1000 * seconds)} ms, "
        f"{format_number(plan.experiment.batch.size / seconds)} samples/s; rates: {plan.rates.source}"
    )
    whole, hours = plan.run_seconds(chosen), plan.gpu_hours(chosen)
    if whole is None or hours is None:
        lines.append("run: of unknown length, as the data that its epochs are of are not here")
    else:
        unit = "GPU" if plan.device.is_gpu else "worker"
        cost = _cost_text(hours, price)
        lines.append(
            f"run: {plan.steps:,} steps, {format_duration(whole)}, {hours:,.3g} {unit} hours{cost}, without "
            "evaluations and saves"
        )
    data = "" if plan.data_bytes is None else f"; data {format_bytes(plan.data_bytes)}"
    number = "" if plan.snapshots is None else f"{plan.snapshots} of "
    kept = f"; snapshots of averages {number}{format_bytes(plan.snapshot_bytes)}" if plan.snapshot_bytes else ""
    lines.append(
        f"files: checkpoint {format_bytes(plan.checkpoint_bytes)}, {plan.checkpoints} kept{kept}{data}; host copy of "
        f"a checkpoint {format_bytes(chosen.memory.checkpoint_copy)} a worker"
    )
    return [*lines, f"not counted: {'; '.join(plan.left_out)}"]


def sweep_line(found: PlannedTrials, price: float | None) -> str:
    """Sentence on a sweep's total."""
    num = f"{found.num_trials:,} trials"
    if found.seeds > 1:
        num = f"{found.num_trials:,} runs ({found.num_trials // found.seeds:,} arms under {found.seeds} seeds)"
    if (hours := found.gpu_hours) is None:
        return f"sweep: {num}, of unknown length"
    about = "" if found.is_exact else ", each like the base with typical values"
    fits = "all fit" if found.fits else "some do not fit"
    return f"sweep: {num}{about}, {hours:,.3g} GPU hours{_cost_text(hours, price)}; {fits}"


def _sweep_dict(found: PlannedTrials, price: float | None) -> dict[str, Any]:
    return {
        "trials": found.num_trials,
        "sweep_gpu_hours": found.gpu_hours,
        "sweep_fits": found.fits,
        "sweep_cost": _cost(found.gpu_hours, price),
    }


def plan_dict(plan: Plan, price: float | None) -> dict[str, Any]:
    """The plan as `--json` prints it: `fits`, `per_gpu_bytes` and `step_seconds` are of the spec as it is."""
    own = plan.own
    best = plan.recommended or own
    hours = plan.gpu_hours(best)
    same = ("parameters", "frozen", "why", "steps", "checkpoint_bytes", "snapshot_bytes", "snapshots", "data_bytes",
            "encoder_flops", "optimizer_flops")  # fmt: skip
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
        "cost": _cost(hours, price),
        "checkpoints_kept": plan.checkpoints,
        "left_out": list(plan.left_out),
        **{name: getattr(plan, name) for name in same},
    }


def _setting_dict(setting: PlannedSetting) -> dict[str, Any]:
    worker = setting.memory
    parts: dict[str, Any] = {name: getattr(worker, name) for name in ("passes", "update", "evaluation")}
    parts |= {"flops": setting.flops, "seconds": setting.seconds}
    return {
        "stage": setting.zero.stage,
        "offload": setting.zero.offload,
        "offload_parameters": setting.zero.offload_parameters,
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
@click.option("--steps", default=3, show_default=True, help="Profiled steps, at most 20.")
@click.option(
    "--out", type=options.NewPath(path_type=Path, file_okay=False),
    help="Folder for the trace and the picture [default: DITLAB_HOME/caches/profile/NAME].",
)  # fmt: skip
@options.overrides
@options.as_json
def profile(spec: Path, steps: int, out: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show where the time of a training step goes: by phase, module and operator, in words and as a picture.

    Takes real steps of one worker on this machine, and leaves no run behind. The trace beside the picture opens in
    Perfetto and in Chrome (chrome://tracing).
    """
    from ditlab.cli.progress import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab.analysis.plot import Plot
        from ditlab_addons.plan import functions, profiling

        progress.stage("profiling steps")
        found = functions.profile(spec, overrides, num_steps=steps, out=out, say=progress.say)
        picture = Plot(profiling.profile_figure(found)).save(found.trace.with_name("profile.png"))
    terminal = output.console(as_json)
    for line in profiling.profile_lines(found):
        output.say(line) if as_json else terminal.print(line, markup=False, highlight=False)
    for table in profiling.profile_tables(found):
        terminal.print(table)
    for file in (picture, found.trace):
        output.print_line(output.short_path(file), as_json)
    output.emit({**profiling.profile_dict(found), "picture": str(picture)}, as_json)
    output.hint(as_json, "plan", *output.repeated_arguments("steps", "out", "as_json"))
