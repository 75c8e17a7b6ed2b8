"""Options that several commands share, and the last line of output."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    """Prints the JSON line where it was asked for. JSON has no NaN or infinity: they become null."""
    if as_json:
        click.echo(json.dumps(_finite(result), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turns what a disk refuses into a UserError that names `--out`."""
    from safetensors import SafetensorError

    from ditlab.errors import UserError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--out {out} cannot be written ({reason}); make room, or name another place.") from error


@contextmanager
def building() -> Iterator[None]:
    """Turns what only building a model, an objective or a sampler finds wrong into a UserError."""
    from ditlab.errors import UserError

    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


def say(message: str) -> None:
    """A line for people, on standard error, without secrets."""
    click.echo(hide(message), err=True)
