"""Tables at any width: each word is whole, or its column is named as not shown."""

import io

import pytest
from rich.text import Text

from ditlab.cli.progress import TerminalConsole
from ditlab.reports.formatting import terminal_table

KINDS = {
    "run": "id",
    "name": "text",
    "status": "text",
    "step": "number",
    "age": "number",
    "loss": "number",
    "held out": "number",
    "/s": "number",
}
ROWS = [
    [
        "43b74af7",
        "digits by class",
        "finished",
        "900/4,000",
        "31 min",
        "1.454",
        "v 0.1234",
        "306.4",
    ],
    ["0ad8cede", "größe 漢字", "lost host", "6/6", "2 d", "0.1234", "", "1,024"],
]
OPTIONAL = ("/s", "age", "step")


def printed(width, rows, title=None, optional=OPTIONAL):
    console = TerminalConsole(file=io.StringIO(), width=width)
    cells = [[Text(cell) if place == 2 else cell for place, cell in enumerate(row)] for row in rows]
    console.print(terminal_table(KINDS, cells, title=title, optional=optional))
    return console.file.getvalue()


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[1:]])
@pytest.mark.parametrize("optional", [OPTIONAL, ()])
def test_no_number_is_cut_at_any_width(rows, optional):
    for width in range(19, 120):
        text = printed(width, rows, optional=optional)
        _, said, names = text.partition("not shown at")
        unseen = " ".join(names.split()).partition(": ")[2].split(", ") if said else []
        assert {*unseen} <= {*optional}
        words = text.split()
        assert max(map(len, text.splitlines())) <= width
        for place, heading in enumerate(KINDS):
            cells = " ".join(row[place] for row in rows).split()
            assert heading in unseen or all(cell in words for cell in cells), (width, heading)


def test_no_more_is_dropped_than_must_be():
    assert "not shown" not in printed(72, ROWS)
    assert [printed(width, ROWS).splitlines()[-1] for width in (71, 64, 56)] == [
        "not shown at 71 columns: /s",
        "not shown at 64 columns: age, /s",
        "not shown at 56 columns: step, age, /s",
    ]


@pytest.mark.parametrize("width", [30, 40, 90])
def test_a_title_is_wrapped_and_not_cut(width):
    title = "trials of the sweep digits-schedule (1f2e3d4c): 2 running of 8, 3 finished"
    assert all(word in printed(width, ROWS, title).split() for word in title.split())
