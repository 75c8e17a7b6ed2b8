"""The reference, made from the code while the site is built, so that it says what the code does."""

from command_tables import commands_page
from metric_tables import metrics_page
from python_names import python_page
from spec_tables import spec_pages


def reference_pages() -> dict[str, str]:
    """Return Markdown by address below docs/."""
    return {
        **{f"reference/{name}.md": text for name, text in spec_pages().items()},
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        "reference/metrics.md": metrics_page(),
    }
