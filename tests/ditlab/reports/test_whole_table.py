"""Tables of a terminal: no word is broken, and what is dropped is named."""

import io

import pytest

from ditlab.cli.progress import TerminalConsole
from ditlab.reports.formatting import terminal_table

RUNS = (
    {
        "run": "id",
        "name": "text",
        "family": "id",
        "status": "text",
        "step": "number",
        "age": "number",
        "/s": "number",
    },
    [
        [
            "43b74af7",
            "digits-demo-by-class x3",
            "pixelhdm",
            "lost host gone",
            "12,900/40,000",
            "31 min",
            "306.4",
        ],
        ["0ad8cede", "a", "dit", "finished", "6/6", "2 d", "1,024"],
    ],
    ("/s", "age", "family"),
)
ANSWER = (
    {f"column_{number}": "text" for number in range(12)},
    [[f"value-{number}" for number in range(12)]],
    (),
)


def lines(columns, rows, optional, width):
    console = TerminalConsole(file=io.StringIO(), width=width)
    console.print(terminal_table(columns, rows, optional=optional))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 66, 50, 40])
@pytest.mark.parametrize("table", [RUNS, ANSWER], ids=["runs", "answer"])
def test_every_word_is_whole_or_its_column_is_named(table, width):
    columns, rows, optional = table
    shown = lines(*table, width)
    assert max(map(len, shown)) <= width
    missing = []
    if shown[-1].startswith("not shown at"):
        missing = shown[-1].partition(": ")[2].split(", ")
    assert set(missing) <= set(optional)
    words = " ".join(shown).split()
    for place, heading in enumerate(columns):
        for text in (heading, *(row[place] for row in rows)):
            assert heading in missing or all(word in words for word in text.split()), (
                heading,
                text,
            )


def test_no_more_is_dropped_than_must_be():
    last = [lines(*RUNS, width)[-1] for width in (87, 75, 67, 57)]
    assert last[0].startswith("0ad8cede")
    assert last[1:] == [
        "not shown at 75 columns: /s",
        "not shown at 67 columns: age, /s",
        "not shown at 57 columns: family, age, /s",
    ]
