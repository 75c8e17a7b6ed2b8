"""`ditlab export`."""

import shlex
import sys
from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, print_line, run_argument
from ditlab.cli.hints import hint_text, relative, short_path


@click.command()
@run_argument
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the files.")
@click.option("--raw", is_flag=True, help="The weights themselves instead of their moving average.")
@click.option("--ema", metavar="LENGTH", help="An average of this relative length, as in `ditlab evaluate --ema`.")
@json_option
def export(run: str, out: Path, raw: bool, ema: str | None, as_json: bool) -> None:
    """Write RUN's weights as safetensors, with the spec that rebuilds the network, and its tokeniser if it has one."""
    from ditlab.cli.progress_bars import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab.interface.run import open_run

        progress.stage("opening the run")
        opened = open_run(run, warn=progress.say, on_progress=progress)
        progress.stage("writing the weights")
        exported = opened.export(out, averaged=not raw, ema=ema)
    for file in exported.files:
        print_line(file, as_json)
    emit(exported.to_dict(), as_json)
    code = f"import ditlab; print(ditlab.load_export({str(relative(exported.folder))!r}).network)"
    hint_text(as_json, f"{short_path(Path(sys.executable))} -c {shlex.quote(code)}")
