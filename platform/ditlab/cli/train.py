"""`ditlab train`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ditlab.cli.common import emit, json_option, say, set_option, spec_argument

if TYPE_CHECKING:
    from ditlab.spec.experiment import Experiment


@click.command()
@spec_argument
@set_option
@click.option("--address", help="Ray cluster to train on (default: RAY_ADDRESS, else this machine alone).")
@click.option("--local", is_flag=True, help="One process, without Ray: for debuggers and machines without Ray.")
@click.option(
    "--resume", metavar="RUN|auto", help="Continue a run; `auto`: the newest unfinished one of this spec, if any."
)
@click.option("--dry-run", is_flag=True, help="Show the resolved spec, parameters, steps and devices; start nothing.")
@json_option
def train(
    spec: Path,
    overrides: tuple[str, ...],
    address: str | None,
    local: bool,
    resume: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Train an experiment. Ctrl-C ends it after a final checkpoint, from which --resume continues."""
    from ditlab.cluster.launch import connected
    from ditlab.cluster.session import cluster_address
    from ditlab.errors import UserError
    from ditlab.spec.loading import load_experiment

    if local and address:
        raise UserError(f"--local and --address {address} exclude each other; leave one out.")
    address = None if local else cluster_address(address)
    experiment = load_experiment(spec, overrides)
    with connected(experiment, None if dry_run else address, say):
        return _train(experiment, resume, local, address is not None, dry_run, as_json)


def _train(
    experiment: "Experiment", resume: str | None, local: bool, remote: bool, dry_run: bool, as_json: bool
) -> int:
    from ditlab.runs.start import start_run
    from ditlab.spec.yaml_text import dump_yaml

    start = start_run(experiment, resume, local=local, remote=remote, dry_run=dry_run)
    for line in start.lines:
        say(line)
    if dry_run:
        click.echo(dump_yaml(experiment.to_dict()), nl=False, err=as_json)
        emit({"status": "dry-run", "spec_hash": experiment.content_hash(), "steps": start.plan.total_steps,
              "total": start.num_parameters}, as_json)  # fmt: skip
        return 0
    result = start.go(local)
    for line in result.lines:
        click.echo(line, err=as_json)
    emit(result.as_dict(), as_json)
    return result.exit_code
