"""`ditlab new`."""

from __future__ import annotations

import click
from typing_extensions import TypedDict

from ditlab.cli import options, output
from ditlab.cli.output_types import FilesOutput
from ditlab.reports.formatting import terminal_table


class ExperimentsOutput(TypedDict):
    experiments: dict[str, str]


RESULTS = {"new": FilesOutput | ExperimentsOutput}


@click.command()
@click.argument("name", required=False)
@click.option("--like", metavar="EXPERIMENT", help="Experiment or sweep to begin with, such as digits/dit.")
@click.option("--list", "is_list", is_flag=True, help="List the experiments and sweeps that come with DiTLab.")
@options.as_json
def new(name: str | None, like: str | None, is_list: bool, as_json: bool) -> None:
    """Write NAME.yaml, a spec whose comments explain its fields; without NAME, list what it can begin with.

    A file that exists is never overwritten.
    """
    from ditlab.spec.files import is_sweep
    from ditlab_addons.starters.starters import describe, shipped, write_commented

    if name is None or is_list:
        if like:
            raise click.UsageError(f"--like {like} is what NAME begins with; give NAME, without --list.")
        found = {each: describe(path) for each, path in shipped().items()}
        output.console(as_json).print(terminal_table({"experiment": "id", "what it is": "text"}, found.items()))
        output.emit({"experiments": found}, as_json)
        output.hint(as_json, "new", "NAME", "--like", "digits/dit")
        return
    if like is None:
        raise click.UsageError(f"NAME={name} has nothing to begin with; give --like digits/dit, or another of --list.")
    path = write_commented(name, like)
    output.emit({"files": [str(path)]}, as_json, [path])
    output.hint(as_json, "tune" if is_sweep(path) else "train", path, "--quick")
