"""Pages show every text unchanged, in one self-contained file that is replaced atomically."""

import base64
import hashlib
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from PIL import Image

from ditlab.reports.formatting import (
    describe_value,
    escape_markdown,
    format_cell,
    format_duration,
    shorten,
)
from ditlab.reports.page import (
    Code,
    ImageFile,
    Page,
    Paragraphs,
    Section,
    Table,
    write_html,
    write_markdown,
)
from support.page_reader import PageReader

NASTY = "<script>alert('1')</script> & \"x\" | `y` *z* _a_ [b](c) \\"


def _picture(folder, name="a picture (1).png"):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), "red").save(folder / name)
    return ImageFile(folder / name, f"what to see in {NASTY}")


def _page(*parts: Table | ImageFile | Paragraphs | Code):
    return Page(
        f"Title {NASTY}",
        f"Lead {NASTY}",
        [Section(f"Section {NASTY}", parts), Section("b", []), Section("c", [])],
    )


def test_html_shows_every_text_unchanged_and_holds_no_script_but_its_own(tmp_path):
    table = Table([NASTY, "n"], [[NASTY, 1], [None, 2]], NASTY)
    page = _page(table, Paragraphs(f"one\n\n{NASTY}"), Code(NASTY, "yaml"), _picture(tmp_path))
    html = write_html(page, tmp_path / "page.html").read_text()
    reader = PageReader(html)
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert not any(key.startswith("on") for _, attrs in reader.tags for key in attrs)
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"unsafe-inline&#39;; script-src &#39;sha256-{digest}&#39;" in html
    # title, h1, lead, navigation, heading, column, cell, caption, paragraph, code, caption of the
    # picture
    assert sum(NASTY in text for text in reader.texts) == 11


def test_html_is_self_contained(tmp_path):
    picture = _picture(tmp_path / "pictures")
    html = write_html(_page(picture), tmp_path / "page.html").read_text()
    assert not re.search(r"https?://|url\(|@import", html)
    found = [attrs.get("src") or attrs.get("href") or "#" for _, attrs in PageReader(html).tags]
    assert all(address.startswith(("data:", "#")) for address in found)
    content = base64.b64encode(picture.path.read_bytes()).decode()
    assert f"data:image/png;base64,{content}" in found


def test_columns_of_numbers_are_aligned_to_the_right(tmp_path):
    rows = [["a", 1.5, 1], ["b", None, "x"], ["c", math.nan, None]]
    table = Table(["name", "value", "mixed"], rows)
    assert table.numeric == [False, True, False]
    html = write_html(_page(table), tmp_path / "page.html").read_text()
    assert '<td class="number">nan</td>' in html and '<td class="number"></td>' in html
    assert "| --- | ---: | --- |" in write_markdown(_page(table), tmp_path / "page.md").read_text()


def test_markdown_table_keeps_its_columns(tmp_path):
    table = Table(["a|b", "c"], [[NASTY, 1], ["two\nlines", None]])
    lines = write_markdown(_page(table), tmp_path / "page.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [3] * 4
    assert not any("<script>" in line for line in lines)


def test_markdown_refers_to_pictures_by_relative_paths(tmp_path):
    page = _page(_picture(tmp_path / "figures"))
    text = write_markdown(page, tmp_path / "out" / "page.md").read_text()
    assert "](../figures/a%20picture%20%281%29.png)" in text


def test_code_in_markdown_may_hold_fences(tmp_path):
    text = write_markdown(_page(Code("a\n```\nb\n", "yaml")), tmp_path / "page.md").read_text()
    assert "````yaml\na\n```\nb\n````\n" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (1234567, "1,234,567"),
        (True, "true"),
        (0.0, "0"),
        (0.123456, "0.1235"),
        (1.5e-5, "1.5e-5"),
        (12345.678, "12,346"),
        (0.99999, "1"),
        (1e7, "1e7"),
        (math.nan, "nan"),
    ],
)
def test_format_cell(value, text):
    assert format_cell(value) == text


@given(st.floats(-1e300, 1e300))
def test_number_has_four_significant_digits(value):
    assert float(format_cell(value).replace(",", "")) == pytest.approx(value, rel=5.1e-4, abs=0)


@given(st.text(st.sampled_from("ab1 .)-+#=*_`~|<>[]()!&;\\\\$:/\n\u00e9"), max_size=24))
def test_escaped_markdown_shows_the_text_unchanged(text):
    """Checked in a paragraph and in a table cell with an independent Markdown parser."""
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    line, escaped = " ".join(text.split()), escape_markdown(text)
    assert "".join(PageReader(reader.render(escaped)).texts).strip() == line
    shown = PageReader(reader.render(f"| head |\n| --- |\n| x{escaped} |"))
    assert [tag for tag, _ in shown.tags] == ["table", "thead", "tr", "th", "tbody", "tr", "td"]
    assert "".join(shown.texts).split("\n")[-5:].count(f"x{line}".strip()) == 1


def test_formatting_of_values_durations_and_long_texts():
    value = {"kind": "cosine", "warmup": 50, "inner": {"a": [1, 0.5]}, "b": None}
    assert describe_value(value) == "cosine (warmup 50, inner {a [1, 0.5]}, b null)"
    assert describe_value({"kind": "constant"}) == "constant"
    for seconds, text in (
        (0, "0 s"),
        (0.25, "0.25 s"),
        (59.7, "1 min"),
        (200, "3 min 20 s"),
        (3599.6, "1 h"),
        (12_345, "3 h 25 min"),
        (183600, "2 d 3 h"),
    ):
        assert format_duration(seconds) == text
    assert shorten("short", 10) == "short" and len(shorten("a long name that goes on", 12)) <= 12


def test_control_characters_and_lone_surrogates_are_replaced(tmp_path):
    page = Page("t", "red \x1b[31m and \ud800 half", [])
    for write in (write_html, write_markdown):
        assert "red \N{REPLACEMENT CHARACTER}" in write(page, tmp_path / "page").read_text("utf-8")


def test_missing_picture_raises_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_html(_page(ImageFile(tmp_path / "none.png")), tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
