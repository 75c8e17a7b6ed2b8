"""`ditlab export`."""

from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, run_argument


@click.command()
@run_argument
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the files.")
@click.option("--raw", is_flag=True, help="The weights themselves instead of their moving average.")
@json_option
def export(run: str, out: Path, raw: bool, as_json: bool) -> None:
    """Write RUN's weights as safetensors, with the spec that rebuilds the network, and its tokeniser if it has one."""
    from ditlab.analysis.saved_run import open_run, output_folder
    from ditlab.training.export import export_weights

    saved = open_run(run)
    files = export_weights(saved.checkpoint.location, output_folder(out), not raw, saved.folder.tokenizer)
    for file in files:
        click.echo(file, err=as_json)
    emit({"run_id": saved.folder.run_id, "step": saved.step, "files": [str(file) for file in files]}, as_json)
