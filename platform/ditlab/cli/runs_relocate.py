"""`ditlab runs relocate`: a moved or copied DITLAB_HOME made one of its own."""

import click

from ditlab.cli.common import emit, json_option, print_line, say


@click.command(short_help="Make a moved or copied DITLAB_HOME one of its own.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@json_option
def relocate(dry_run: bool, as_json: bool) -> None:
    """Make a DITLAB_HOME that was moved or copied one of its own: its runs write where it is now, and nowhere else.

    Absolute paths in MLflow's database and in the runs' records and specs are changed, the database in one transaction
    after a backup beside it. Files of the folder from which it comes are neither read nor written.
    """
    from ditlab.home import Home
    from ditlab.runs.relocation import relocate_home

    done = relocate_home(Home.from_environment(), dry_run=dry_run)
    if not done.former:
        print_line(f"{done.present} is where it was made; there is nothing to relocate", as_json)
    else:
        former = ", ".join(map(str, done.former))
        verb = "would be relocated" if dry_run else "relocated"
        print_line(f"{done.present}: {verb} from {former}", as_json)
        counts = [f"{number:,} in {place}" for place, number in done.database.changes.items()]
        print_line(f"  MLflow's database: {', '.join(counts) or 'no path'}", as_json)
        print_line(f"  files of runs: {len(done.files):,}", as_json)
        if done.database.backup:
            print_line(f"  backup: {done.database.backup}", as_json)
    for remark in done.left:
        say(remark)
    emit({"dry_run": dry_run, **done.to_dict()}, as_json)
