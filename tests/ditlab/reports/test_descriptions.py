"""Pictures carry their alternative text, pages read it from them, and axes count what can be
counted.
"""

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas

from ditlab.reports.figures import loss_figure
from ditlab.reports.page import ImageFile, NamedPicture, read_description
from ditlab.reports.rendering.charts import draw_lines
from ditlab.reports.rendering.image_grid import GridLayout
from ditlab.reports.rendering.panels import draw_panel
from ditlab.reports.rendering.render import draw_canvas, save_figure, save_formats, to_image
from ditlab.reports.rendering.theme import PanelSize, wrap
from ditlab.tracking.history import Series
from ditlab_models.figures import Curve, Figure, Heatmap, ImageGrid, Lines, Text

ABOUT = 'Loss <b>"falls"</b> & 2 > 1 → ∞'


def ticks(panel, axis):
    canvas = Canvas()
    axes = canvas.add_subplot()
    draw_lines(panel, axes)
    canvas.draw_without_rendering()
    return [
        label.get_text()
        for label in getattr(axes, f"get_{axis}ticklabels")(which="both")
        if label.get_text()
    ]


def test_pictures_carry_their_alternative_text(tmp_path):
    figure = Figure([Lines([Curve(np.arange(3), np.arange(3.0))])], "two\nlines", alt=ABOUT)
    png, svg = save_formats(figure, tmp_path / "a", ("png", "svg"))
    assert read_description(png) == read_description(svg) == f"{ABOUT}."
    assert ImageFile(png).alternative == f"{ABOUT}."
    bare = save_figure(Figure([Text(["b"])], alt="bare"), tmp_path / "b.png")
    assert ImageFile(bare).alternative == "bare."
    assert ImageFile(tmp_path / "some_loss-c.png").alternative == "some loss c"
    assert NamedPicture("adaln", "data:", about="bare").alternative == "bare"
    assert NamedPicture("adaln", "data:").alternative == "Figure: adaln"


@pytest.mark.parametrize(
    "content", [b"", b"\x89PNG\r\n\x1a\n" + b"\xff" * 99, b"<svg><desc>open", b"GIF89a"]
)
def test_a_damaged_picture_has_no_alternative_text(content, tmp_path):
    for suffix in (".png", ".svg", ".gif"):
        path = tmp_path / f"a{suffix}"
        path.write_bytes(content)
        assert read_description(path) == ""
    assert read_description(tmp_path / "missing.png") == ""


def test_there_is_no_layer_one_and_a_half():
    for last, are_whole in ((3, True), (1, False)):
        steps = np.linspace(0, last, 4)
        found = ticks(Lines([Curve(steps, steps)]), "x")
        assert found and all(float(text).is_integer() for text in found) == are_whole


def test_logarithmic_axes_are_written_plainly():
    x = np.geomspace(1e-4, 20, 9)
    panel = Lines([Curve(x, np.linspace(0.06, 0.4, 9))], log_x=True, log_y=True)
    x_ticks, y_ticks = ticks(panel, "x"), ticks(panel, "y")
    assert {"0.001", "0.1", "10"} <= set(x_ticks) and {"0.1", "0.2", "0.3"} <= set(y_ticks)
    assert not any("10^" in text or "times" in text for text in x_ticks + y_ticks)


def test_each_held_out_metric_has_a_panel_of_its_own():
    steps = np.arange(3)
    last = {"train/loss": 3.0, "eval/perplexity": 240.0, "eval/bound": 5.5}
    history = {
        name: Series(steps, np.linspace(value / 2, value, 3), steps) for name, value in last.items()
    }
    panels = loss_figure(history).panels[1:]
    assert [panel.title for panel in panels if isinstance(panel, Lines)] == ["bound", "perplexity"]


def test_captions_of_a_row_stand_on_one_line():
    picture = to_image(Figure([ImageGrid(np.ones((2, 16, 16)), ["ace", "lace"])]))
    halves = np.array_split((picture < 150).all(axis=2), 2, axis=1)
    small, tall = (half.any(axis=1).nonzero()[0] for half in halves)
    assert small.max() == tall.max() and small.min() > tall.min() + 2


def test_captions_of_several_lines_stand_below_their_image():
    layout = GridLayout(
        ImageGrid(np.ones((4, 16, 16)), ["a long caption of two lines", "b", "", "d"], columns=2)
    )
    below = layout.corner(0)[0] + layout.tile_height
    _, places, texts = zip(*layout.captions(), strict=True)
    assert " ".join(texts) == "a long caption of two lines b d" and len(texts) == 4
    assert below < places[0] < places[1] < layout.corner(2)[0] and places[2] == places[0]


def test_short_names_of_columns_stand_upright():
    canvas = Canvas()
    for names, turned in ((["1", "12"], 0.0), (["red", "green"], 90.0)):
        axes = canvas.add_subplot()
        draw_panel(Heatmap(np.eye(2), x_names=names), axes, PanelSize(4, 2, 0))
        assert {label.get_rotation() for label in axes.get_xticklabels()} == {turned}


def test_an_equation_is_not_broken_over_lines():
    lines = wrap(
        "Principal components of the tokens behind the last block, t = 0.25", 4.3, 12
    ).split("\n")
    assert len(lines) > 1 and lines[-1].endswith("t = 0.25")


def test_text_below_curves_has_the_width_that_it_needs():
    canvas = draw_canvas(
        Figure([Lines([Curve([0, 1], [0, 1])], "", "x", "y"), Text(["w" * 90])], columns=1)
    )
    canvas.draw_without_rendering()
    band = canvas.axes[1].get_window_extent()
    written = canvas.axes[1].texts[0].get_window_extent()
    assert written.x1 < band.x1 and written.x1 < canvas.bbox.x1
