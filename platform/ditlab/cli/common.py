"""Options that several commands share, and their output."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from ditlab.secrets import hide

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object as the last line of standard output."
)
set_option: Decorator = click.option(
    "--set", "overrides", multiple=True, metavar="P=V", help="Override a field by its dotted path: optimizer.lr=1e-4."
)
spec_argument: Decorator = click.argument("spec", type=click.Path(path_type=Path))
run_argument: Decorator = click.argument("run")


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
    """Print a line for people on standard error, without secrets."""
    click.echo(hide(message), err=True)
