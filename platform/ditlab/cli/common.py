"""Options that several commands share, and their output."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli.completing import complete_run
from ditlab.cli.visible import shown

if TYPE_CHECKING:
    from ditlab.cli.terminal import TerminalConsole

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object as the last line of standard output."
)
set_option: Decorator = click.option(
    "--set", "overrides", multiple=True, metavar="P=V", help="Override a field by its dotted path: optimizer.lr=1e-4."
)
quick_option: Decorator = click.option(
    "--quick",
    is_flag=True,
    help="About a minute of it: few steps, small batches, a narrow evaluation. Prints what it changes; --set wins.",
)
spec_argument: Decorator = click.argument("spec", type=click.Path(path_type=Path))
run_argument: Decorator = click.argument("run", shell_complete=complete_run)


def emit(result: Mapping[str, Any], as_json: bool) -> None:
    """Print the JSON line for `--json`. JSON has no NaN or infinity: they become null."""
    if as_json:
        click.echo(json.dumps(_finite(result), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say(message: str) -> None:
    """Print a line for people on standard error, without secrets and control characters."""
    click.echo(shown(message), err=True)


def print_line(text: object, as_json: bool = False) -> None:
    """Print a line of a command's result, such as a file's path: on standard output, or on standard error for `--json`.

    Secrets and control characters are left out, as in `say`.
    """
    click.echo(shown(str(text)), err=as_json)


def print_yaml(mapping: Mapping[str, Any], as_json: bool = False) -> None:
    """Print a mapping as YAML: as it is in a file or pipe, with visible control characters on a terminal."""
    from ditlab.spec.reading.yaml_text import dump_yaml

    text = dump_yaml(mapping)
    out = sys.stderr if as_json else sys.stdout
    click.echo(shown(text) if out.isatty() else text, nl=False, err=as_json)


def delivery_text(what: str, run_id: str, num_unsent: int) -> str:
    """Describe what has become of records that a command added to a run: sent to MLflow, or queued for it."""
    if not num_unsent:
        return f"{what} sent to MLflow, run {run_id}"
    records = f"{num_unsent:,} record{'s' if num_unsent > 1 else ''}"
    return (
        f"{what} queued for MLflow, which does not take them now ({records} to send); "
        f"`ditlab runs sync {run_id}` sends them"
    )


def console(as_json: bool) -> "TerminalConsole":
    """Console of a command's tables, which reads no markup: standard output, or standard error for `--json`."""
    from ditlab.cli.terminal import TerminalConsole

    return TerminalConsole(stderr=as_json)
