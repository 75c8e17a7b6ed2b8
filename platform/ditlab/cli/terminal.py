"""Text on a terminal: secrets hidden, control characters as visible escapes, nothing of it read as markup."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ditlab.cli.visible import shown

STATUS_COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "interrupted": "yellow", "stopped": "blue"}


class TerminalConsole(Console):
    """Console that prints names, paths and messages as they are: `[red]` in one is no colour, an escape byte is shown.

    Colours come from `Text` and styles in the code alone.
    """

    def render_str(self, text: str, **settings: Any) -> Text:
        """Make text of a string: of a table's cell or title, or of what is printed."""
        return super().render_str(shown(text), **{**settings, "markup": False, "emoji": False, "highlight": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render anything; text that was made elsewhere loses its colours where it holds control characters."""
        if isinstance(renderable, Text) and shown(renderable.plain) != renderable.plain:
            renderable = Text(shown(renderable.plain), renderable.style)
        return super().render(renderable, options)


def status_text(status: str) -> Text:
    """A run's status in its colour."""
    return Text(shown(status), STATUS_COLOURS.get(status, ""))
