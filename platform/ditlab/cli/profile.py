"""`ditlab profile`."""

from pathlib import Path

import click

from ditlab.cli.common import console, emit, json_option, print_line, say, set_option, spec_argument
from ditlab.cli.hints import short_path


@click.command()
@spec_argument
@click.option("--steps", default=3, show_default=True, help="Profiled steps, at most 20.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the trace and the picture [default: DITLAB_HOME/caches/profile/NAME].",
)  # fmt: skip
@set_option
@json_option
def profile(spec: Path, steps: int, out: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show where the time of a training step goes: by phase, module and operator, in words and as a picture.

    Takes real steps of one worker on this machine, and leaves no run behind. The trace beside the picture opens in
    Perfetto and in Chrome (chrome://tracing).
    """
    from ditlab.cli.progress_bars import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab.analysis.plot import Plot
        from ditlab.analysis.profiling import summary
        from ditlab.interface import profiling

        progress.stage("profiling steps")
        found = profiling.profile(spec, overrides, num_steps=steps, out=out, say=progress.say)
        picture = Plot(summary.profile_figure(found)).save(found.trace.with_name("profile.png"))
    terminal = console(as_json)
    for line in summary.profile_lines(found):
        say(line) if as_json else terminal.print(line, markup=False, highlight=False)
    terminal.print(summary.module_table(found))
    terminal.print(summary.operator_table(found))
    for file in (picture, found.trace):
        print_line(short_path(file), as_json)
    emit({**summary.profile_dict(found), "picture": str(picture)}, as_json)
