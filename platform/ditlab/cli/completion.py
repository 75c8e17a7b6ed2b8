"""`ditlab completion`."""

import click

from ditlab.cli.common import emit, json_option

# Where a shell reads the script at each start.
_PLACES = {
    "bash": 'add to ~/.bashrc: eval "$(ditlab completion bash)"',
    "zsh": 'add to ~/.zshrc: eval "$(ditlab completion zsh)"',
    "fish": "ditlab completion fish > ~/.config/fish/completions/ditlab.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_PLACES)))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print a script by which SHELL completes commands, options, files and the ids of runs."""
    from click.shell_completion import get_completion_class

    from ditlab.cli.hints import hint_text
    from ditlab.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(cli, {}, "ditlab", "_DITLAB_COMPLETE").source()
    click.echo(script, err=as_json)
    emit({"shell": shell, "script": script}, as_json)
    hint_text(as_json, _PLACES[shell])
