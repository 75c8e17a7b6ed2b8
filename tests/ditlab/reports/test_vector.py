"""Vector pictures: XML without references, the same bytes each time, legible."""

from xml.etree import ElementTree

import numpy as np
from PIL import Image

from ditlab.reports.rendering.render import save_formats, to_pdf, to_svg
from ditlab.reports.rendering.theme import one_line, text_on
from ditlab_models.figures import (
    Arrow,
    Bars,
    Box,
    Curve,
    Diagram,
    Figure,
    Heatmap,
    ImageGrid,
    Lines,
    PointGroup,
    Points,
    Text,
)

MARKUP = "<script>alert('$x_1$')</script> & \\frac{1}{2} \x00"
HUGE = MARKUP * 400
FIGURE = Figure(
    [
        Heatmap(
            np.arange(6.0).reshape(2, 3),
            HUGE,
            MARKUP,
            MARKUP,
            x_names=[HUGE] * 3,
            unit=HUGE,
            cell_texts=[["a", "$b$", "<i>"]] * 2,
        ),
        Lines(
            [
                Curve(np.arange(3), np.arange(3.0), HUGE),
                Curve(np.arange(5000), np.arange(5000.0), "_hidden"),
            ],
            HUGE,
        ),
        Bars([HUGE, "two"], np.array([1.0, 2.0]), MARKUP, texts=[HUGE, ""]),
        Points(
            [PointGroup(np.arange(3), np.arange(3), HUGE), PointGroup([1], [2], texts=[HUGE])],
            MARKUP,
        ),
        Diagram(
            [Box(HUGE, HUGE), Box("b", column=1), Box("c", row=1)],
            [Arrow(0, 1, HUGE), Arrow(1, 2)],
            MARKUP,
        ),
        ImageGrid(np.eye(4)[None], [HUGE], title=MARKUP),
        Text([HUGE], MARKUP),
    ],
    HUGE,
    columns=3,
)


def test_an_svg_is_xml_that_refers_to_nothing_and_shows_texts_as_written():
    drawing = to_svg(FIGURE)
    root = ElementTree.fromstring(drawing)
    assert root.get("role") == "img" and float(root.get("width", "").removesuffix("pt")) < 2500
    space = "{http://www.w3.org/2000/svg}"
    title, description = root.find(f"{space}title"), root.find(f"{space}desc")
    assert title is not None and title.text and description is not None and description.text
    assert title.text.startswith("<script>alert('$x_1$')</script> &") and len(title.text) <= 300
    assert len(description.text) <= 1000
    for element in root.iter():
        assert element.tag.removeprefix(space) not in {"script", "style"} or "import" not in (
            element.text or ""
        )
        for name, value in element.attrib.items():
            if name.endswith("href"):
                assert value.startswith(("#", "data:image/png;base64,")), value[:80]
            assert not name.lower().startswith("on")
    assert "<!DOCTYPE" not in drawing and "<metadata" not in drawing
    assert len(drawing) < 700_000  # outlines of some thousand letters


def test_files_by_format(tmp_path):
    panels = [ImageGrid(np.eye(4)[None])]
    figure = Figure(panels, "one", frames=[Figure(panels)])
    files = save_formats(figure, tmp_path / "a.b", ("png", "svg", "pdf"))
    assert [file.name for file in files] == ["a.b.gif", "a.b.svg", "a.b.pdf"]
    assert files[1].read_bytes() == to_svg(figure).encode()
    with Image.open(tmp_path / "a.b.png") as still:
        assert still.text == {"Title": "one", "Description": "one. Grid of images, 1 images."}
    assert to_pdf(figure) == to_pdf(figure) == files[2].read_bytes()
    assert files[2].read_bytes().startswith(b"%PDF")


def test_text_on_a_colour_is_black_or_white_by_its_luminance():
    """Both contrasts are equal at a luminance of 0.179, a grey of 0.46 (WCAG 2.2)."""
    assert {text_on([grey] * 3) for grey in (0.0, 0.45)} == {text_on((0, 0, 1))} == {"#ffffff"}
    assert {text_on([grey] * 3) for grey in (0.47, 1.0)} == {text_on((1, 0, 0))} == {"#000000"}


def test_one_line_cuts_and_says_so():
    assert one_line("a\nb\tc", 10) == "a b c"
    assert one_line("word " * 4000, 12) == "word word w…"
    assert one_line("\x00", 5) == "\N{WHITE SQUARE}"
