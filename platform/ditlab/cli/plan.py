"""`ditlab plan`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.common import console, emit, json_option, print_line, say, set_option, spec_argument
from ditlab.cli.hints import hint, repeated_arguments, short_path

if TYPE_CHECKING:
    from ditlab.interface.planning import PlannedTrials
    from ditlab.planning.plan import Plan


@click.command()
@spec_argument
@click.option("--gpus", type=int, metavar="N", help="Workers, one a GPU (default: the spec's).")
@click.option("--gpu", metavar="NAME", help="Kind of GPU: H100, H200, A100, L40S, ..., or cpu (default: the spec's).")
@click.option("--gpu-memory", metavar="SIZE", help="Memory of each GPU, such as 80GiB (default: that of its kind).")
@click.option("--measure", is_flag=True, help="Take a few real steps on this machine, and plan with their rates.")
@click.option("--price", type=float, metavar="P", help="Price of a GPU hour, for the run's cost.")
@click.option(
    "--apply", "target", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the recommended setting as a spec that extends SPEC.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="PNG", help="Draw memory by setting into this file.")
@set_option
@json_option
def plan(
    spec: Path,
    gpus: int | None,
    gpu: str | None,
    gpu_memory: str | None,
    measure: bool,
    price: float | None,
    target: Path | None,
    out: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Tell memory, time and cost of a run under every ZeRO setting, before a GPU is taken.

    SPEC is an experiment, or a sweep, of which the total is told.
    """
    from ditlab.cli.progress_bars import ProgressBars
    from ditlab.errors import UserError
    from ditlab.spec.reading.files import is_sweep

    if price is not None and not 0 < price < float("inf"):
        raise UserError(f"--price={price:g} is no price of a GPU hour; give a number above 0, or leave it out.")
    for option, file in (("--apply", target), ("--out", out)):
        if file is not None and not file.name:
            raise UserError(f"{option} {file} names no file; give a file's path.")
    if out is not None and out.suffix.lower() != ".png":
        raise UserError(f"--out {out} is not the name of a PNG; give one that ends in .png.")
    sweeps = is_sweep(spec)
    if sweeps and (target or out):
        given = "--apply" if target else "--out"
        raise UserError(f"{given} is for an experiment, and {spec} is a sweep; give its base.")
    with ProgressBars("loading PyTorch") as progress:
        from ditlab.interface import planning

        progress.stage("measuring steps" if measure else "tracing the network")
        options: dict[str, Any] = {"gpus": gpus, "gpu": gpu, "gpu_memory": gpu_memory, "measure": measure}
        if sweeps:
            found = planning.plan_sweep(spec, overrides, **options, say=progress.say)
            planned = found.largest
        else:
            planned, found = planning.plan(spec, overrides, **options, say=progress.say), None
        written = planning.apply_plan(planned, spec, target) if target else None
        picture = planning.draw_plan(planned, out) if out else None
    _show(planned, found, price, as_json)
    for file in filter(None, (picture, written)):
        print_line(short_path(file), as_json)
    emit(_result(planned, found, price, picture, written), as_json)
    if found is not None:
        hint(as_json, "tune", spec, *repeated_arguments("spec", *_OWN), "--dry-run")
    elif planned.recommended is not None:
        hint(as_json, "train", written or spec, *([] if written else repeated_arguments("spec", *_OWN)))


_OWN = ("gpus", "gpu", "gpu_memory", "measure", "price", "target", "out", "as_json")


def _show(planned: "Plan", found: "PlannedTrials | None", price: float | None, as_json: bool) -> None:
    """Print the table and the lines for people."""
    from ditlab.cli.plan_table import plan_lines, plan_table, sweep_lines

    terminal = console(as_json)
    terminal.print(plan_table(planned, terminal.width))
    for line in plan_lines(planned, price) + (sweep_lines(found, price) if found else []):
        say(line) if as_json else terminal.print(line, soft_wrap=False)


def _result(
    planned: "Plan", found: "PlannedTrials | None", price: float | None, picture: Path | None, written: Path | None
) -> dict[str, Any]:
    """The keys of `--json`."""
    from ditlab.cli.plan_table import plan_dict

    result = plan_dict(planned, price)
    if found is not None:
        hours = found.gpu_hours
        result |= {"trials": found.num_trials, "sweep_gpu_hours": hours, "sweep_fits": found.fits}
        result["sweep_cost"] = None if price is None or hours is None else hours * price
    return result | {"picture": picture and str(picture), "applied": written and str(written)}
