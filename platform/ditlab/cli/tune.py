"""`ditlab tune`."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ditlab.cli.common import emit, json_option, say, set_option

if TYPE_CHECKING:
    from ditlab.sweeps.prepare import ReadySweep


@click.command()
@click.argument("sweep", required=False, type=click.Path(path_type=Path))
@set_option
@click.option("--address", help="Ray cluster to train on (default: RAY_ADDRESS, else this machine alone).")
@click.option(
    "--resume",
    metavar="SWEEP_ID|auto",
    help="Go on with a sweep: its trials that have ended are not run again; `auto`: the newest unfinished one, if any.",
)
@click.option("--dry-run", is_flag=True, help="Show the trials, their resources, parameters and time; start nothing.")
@json_option
def tune(
    sweep: Path | None,
    overrides: tuple[str, ...],
    address: str | None,
    resume: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run the trials of a sweep, rank them, and write a report. Ctrl-C ends it after a checkpoint of each trial."""
    from ditlab.cluster.session import cluster_address, ray_session
    from ditlab.errors import UserError
    from ditlab.home import Home
    from ditlab.spec.sweep.loading import load_sweep
    from ditlab.sweeps.prepare import (
        cluster_nodes,
        create_sweep,
        local_nodes,
        look_back,
        ready_sweep,
        resumed_sweep,
        take_up,
        unfinished_sweep,
    )

    if sweep is None and not resume:
        raise UserError("neither SWEEP nor --resume is given; name a sweep's YAML, or the id of one to go on with.")
    if overrides and sweep is None:
        raise UserError(f"--set {overrides[0]} changes a file, and none is given; name the sweep's YAML as well.")
    given = load_sweep(sweep, overrides) if sweep else None
    address = cluster_address(address)
    with ray_session(address, 0) if address and not dry_run else nullcontext():
        nodes = cluster_nodes() if address and not dry_run else local_nodes()
        folder, home = None, Home.from_environment()
        if resume == "auto":
            if given is None:
                raise UserError("--resume auto finds a sweep by its file, and none is given; name the sweep's YAML.")
            resume = unfinished_sweep(home, given)
        if resume:
            folder, given, note = resumed_sweep(home, resume, given)
            if note:
                say(note)
        assert given
        begun = folder.sweep() if folder else None
        ready = ready_sweep(given, str(sweep or resume), nodes, remote=address is not None, begun=begun)
        if dry_run:
            if folder:
                look_back(ready, folder)
            return _show(ready, as_json)
        if folder is None:
            create_sweep(ready)
        else:
            take_up(ready, folder)
        for line in ready.lines:
            say(line)
        return _run(ready, address, as_json)


def _run(ready: "ReadySweep", address: str | None, as_json: bool) -> int:
    from ditlab.cluster.session import ray_session
    from ditlab.sweeps.session import Running
    from ditlab.sweeps.summary import last_words

    with ray_session(address, 0):
        result = Running(ready).run()
    for line in last_words(result, ready.num_trials):
        click.echo(line, err=as_json)
    emit(result.as_dict(), as_json)
    return result.exit_code


def _show(ready: "ReadySweep", as_json: bool) -> int:
    from rich.console import Console

    from ditlab.sweeps.forecast import forecast, forecast_table

    for line in ready.lines:
        say(line)
    expected = forecast(ready)
    console = Console(stderr=as_json)
    console.print(forecast_table(ready, expected))
    for line in expected.lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    emit({"status": "dry-run", **expected.as_dict(ready)}, as_json)
    return 0
