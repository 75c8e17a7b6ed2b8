"""Markdown in which every text of a person's stands as it was written."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from ditlab.secrets import hide
from ditlab.tracking.names import MODEL_TRAINING, experiment_page, shorten

_PLAIN = re.compile(r"[^A-Za-z0-9 ,./()=+%-]", re.ASCII)
_MARGIN = 1000
"""Characters beyond a text's limit in which secrets are looked for: one that is cut in two would be shown."""
_PICTURE, _PAGE = "picture:", "page:"
_ADDRESS = re.compile(r"\]\((picture|page|charts):([^()\s]*)\)")


def plain(text: object, limit: int = 120) -> str:
    """A text of one line that no reader of Markdown or HTML takes for markup, of at most about `limit` characters.

    Everything but letters, digits and a few marks becomes a numeric entity: no tag, link, mention or address is left.
    """
    beginning = hide(str(text)[: limit + _MARGIN])
    kept = "".join(" " if unicodedata.category(mark)[0] in "CZ" else mark for mark in beginning)
    short = shorten(" ".join(kept.split()), max(limit, 60))
    return _PLAIN.sub(lambda found: f"&#{ord(found[0])};" if found[0].isascii() else found[0], short).replace(
        "www.", "www&#46;"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already. Empty columns are left out; a space parts the others in MLflow."""
    lines = [list(row) for row in rows]
    kept = [place for place in range(len(head)) if place == 0 or any(row[place] for row in lines)]
    marks = ["---" for _ in head]
    return "\n".join(
        f"| {' | '.join(('&ensp;' if place and row is not marks else '') + row[place] for place in kept)} |"
        for row in (head, marks, *lines)
    )


def code(lines: Iterable[str], width: int = 160) -> str:
    """A block in which nothing is markup; each line is cut to `width` characters."""
    kept = (re.sub(r"[`\x00-\x1f\x7f]+", " ", hide(line[: width + _MARGIN])) for line in lines)
    return "\n".join(["```", *(shorten(line, max(width, 60)) for line in kept), "```"])


def listed(lines: Iterable[str], width: int = 400) -> str:
    """A list of plain lines of at most about `width` characters. A page breaks them; a block's lines would widen it."""
    return "\n".join(f"- {plain(line, width)}" for line in lines)


def picture(title: str, artifact: str) -> str:
    """A picture among the run's artifacts; `with_addresses` puts in the address under which it is shown."""
    return f"![{title}]({_PICTURE}{quote(artifact)})"


def page(title: str, artifact: str) -> str:
    """A link to a page among the run's artifacts."""
    return f"[{title}]({_PAGE}{quote(artifact)})"


def charts(title: str) -> str:
    """A link to the charts of the run's experiment, whose image cards show all steps."""
    return f"[{title}](charts:)"


def with_addresses(text: str, experiment_id: str, mlflow_run_id: str) -> str:
    """The note with MLflow's addresses, relative to its pages, of the pictures and pages that it names.

    MLflow 3.17 renders pictures of `http`, `https` and relative addresses, and no `data:` ones.
    """

    def address(found: re.Match[str]) -> str:
        if found[1] == "picture":
            return f"](get-artifact?path={found[2]}&run_uuid={mlflow_run_id})"
        if found[1] == "charts":
            return f"]({experiment_page(experiment_id, charts=True)})"
        return f"](#/experiments/{experiment_id}/runs/{mlflow_run_id}/artifacts/{found[2]}?{MODEL_TRAINING})"

    return _ADDRESS.sub(address, text)
