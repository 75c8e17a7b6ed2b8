"""`ditlab figures`."""

from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, print_line, say


@click.command()
@click.argument("run", required=False)
@click.option("--kind", "kinds", multiple=True, help="Only this kind (repeatable); --list names them.")
@click.option("--list", "only_list", is_flag=True, help="List the kinds and draw nothing.")
@click.option("--seed", default=0, show_default=True, help="Seed of the samples in the figures.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the pictures (default: figures/, or the run's)."
)
@json_option
def figures(
    run: str | None, kinds: tuple[str, ...], only_list: bool, seed: int, out: Path | None, as_json: bool
) -> None:
    """Draw the figures of RUN's family from its trained weights, and log them to the run.

    Without RUN: figures that need no weights (embeddings, schedules, each family's fixed tables).
    """
    from ditlab.errors import UserError
    from ditlab.interface.analysis import figures as general_figures
    from ditlab.interface.run import open_run

    opened = open_run(run, warn=say) if run else None
    if opened and not only_list:
        opened.check_writable()
    found = opened.figures(seed) if opened else general_figures()
    if only_list:
        for kind in found.kinds:
            print_line(kind, as_json)
        emit({"kinds": found.kinds}, as_json)
        return
    found.check(kinds)
    files = []
    for kind in kinds or found.kinds:
        file = found.save_kind(kind, out)
        if file is not None:
            files.append(file)
            print_line(file, as_json)
        elif kinds:
            raise UserError(f"--kind {kind}: run {run} has nothing to draw it from; leave it out.")
        else:
            say(f"no {kind}: the run has nothing to draw it from.")
    if opened:
        opened.log_figures(files)
        say(f"logged {len(files)} figures to run {opened.id}")
    emit({"files": [str(file) for file in files]}, as_json)
