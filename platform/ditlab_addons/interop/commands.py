"""`ditlab weights`: published weights, and how a run begins from them."""

from __future__ import annotations

import click

from ditlab.cli import options, output


@click.group()
def weights() -> None:
    """Tell the format and spec of published weights."""


@weights.command()
@click.argument("path", metavar="PATH")
@click.option(
    "--format", "format_name", default="auto", metavar="NAME", help="Format of the weights [found from their names]."
)
@options.as_json
def inspect(path: str, format_name: str, as_json: bool) -> int:
    """Tell what weights PATH holds: format, family, spec, parameters, what fits our network, hashes.

    PATH is a file (.safetensors; .pt, .pth, .bin and .ckpt are read where they hold tensors alone), a folder with one,
    with shards and their index, or with an export of DiTLab, or hf://OWNER/NAME[@REVISION][/PATH]. The printed section
    `model` begins a spec that trains from them. Exit code 1 where tensors do not fit.
    """
    from ditlab.home import Home
    from ditlab_addons.interop.inspection import inspect_weights

    found = inspect_weights(path, Home.from_environment(), format_name)
    for line in found.lines():
        output.print_line(line, as_json)
    output.print_yaml({"model": {**found.model, "init": {"from": found.place}}}, as_json)
    output.emit(found.to_dict(), as_json)
    output.hint(as_json, "train", *found.command)
    return 1 if found.fit.problems else 0
