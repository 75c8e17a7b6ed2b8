"""The built site: links and anchors resolve, nothing is loaded from elsewhere; faults that are
planted are found.
"""

import sys

import pytest

from support.documents import CHECKOUT, build_site

sys.path.insert(0, str(CHECKOUT / "docs" / "hooks"))

from built_site import find_faults
from command_notes import leave_out_notes
from figure_gallery import kind_meanings, show_figures
from formulas import render_formulas
from repository_pages import RepositoryPages
from scrolling_boxes import reach_boxes

PAGE = '<html><body><h1 id="top">A</h1><img src="a.png" alt="a">{}</body></html>'
FAULTS = {
    '<script src="https://cdn.example.org/x.js"></script>': "loads https://cdn.example.org/x.js",
    '<link rel="stylesheet" href="//fonts.example.org/a.css">': "loads //fonts.example.org/a.css",
    '<link rel="preconnect" href="https://fonts.example.org">': "loads https://fonts.example.org",
    '<img src="http://example.org/a.png" alt="a">': "loads http://example.org/a.png",
    "<style>@font-face {src: url('https://example.org/f.woff2')}</style>": "loads https://example.org/f.woff2",
    '<p style="background: url(https://example.org/b.png)">': "loads https://example.org/b.png",
    '<iframe src="https://example.org"></iframe>': "loads https://example.org",
    '<a href="other.html">x</a>': "other.html leads nowhere",
    '<a href="../outside.html">x</a>': "../outside.html leads nowhere",
    '<a href="index.html#nowhere">x</a>': "index.html#nowhere: no such anchor",
    '<a href="#nowhere">x</a>': "#nowhere: no such anchor",
    '<a href="https://exa mple.org/">x</a>': "is no address",
    '<a href="https://example">x</a>': "is no address",
    '<a href="javascript:alert(1)">x</a>': "links are http or https",
    '<img src="a.png">': "has no alternative text",
    '<pre class="mermaid">graph</pre>': "mermaid",
    '<span class="arithmatex">\\(x\\)</span>': "no MathML",
}


def test_planted_faults_are_found(tmp_path):
    (tmp_path / "a.png").touch()
    page = tmp_path / "index.html"
    page.write_text(
        PAGE.format(
            '<a href="#top">x</a><a href="index.html#top">x</a><a href="https://arxiv.org/abs/1">x</a>'
        )
    )
    assert find_faults(tmp_path) == []
    for planted, fault in FAULTS.items():
        page.write_text(PAGE.format(planted))
        (found,) = find_faults(tmp_path)
        assert fault in found
    page.write_text(PAGE.format(""))
    (tmp_path / "a.css").write_text('@import "https://example.org/b.css";')
    assert find_faults(tmp_path) == ["a.css: loads https://example.org/b.css"]


def test_formulas_become_mathml():
    inline = '<span class="arithmatex">\\(x_t &lt; 1\\)</span>'
    display = '<div class="arithmatex">\\[\\sqrt{\\bar\\alpha_t}\\]</div>'
    page = render_formulas(f"<p>The {inline}:</p>{display}")
    assert page.count("<math") == 2 and page.count('display="block"') == 1
    assert "<msqrt>" in page and "arithmatex" not in page and 'aria-label="x_t &lt; 1"' in page
    with pytest.raises(ValueError, match="unknown to latex2mathml"):
        render_formulas('<span class="arithmatex">\\(\\nosuchcommand{x}\\)</span>')


def test_boxes_that_scroll_take_the_focus_once():
    for box in ("<table>", '<table style="a">', '<div class="output">', '<div class="formula">'):
        found = reach_boxes(box)
        assert found.count(' tabindex="0"') == 1 and reach_boxes(found) == found
    assert reach_boxes('<div class="outputs"><tablet>') == '<div class="outputs"><tablet>'


def test_notes_on_commands_stay_out_of_the_site():
    shown = leave_out_notes("<!-- not run: needs a\nbucket -->\n```\nx\n```\n<!-- other -->")
    assert shown == "\n```\nx\n```\n<!-- other -->"


def test_guides_show_the_figures_of_their_family(tmp_path):
    folder = tmp_path / "images" / "figures"
    folder.mkdir(parents=True)
    (folder / "dit-forward_pass.svg").write_text("<svg><desc>Patches &amp; blocks</desc></svg>")
    for name in ("dit-attention", "dit-attention-dark", "dit-shown", "unet-attention"):
        (folder / f"{name}.png").touch()
    (tmp_path / "figures.md").write_text(
        "| kind | shows |\n| `attention`, `maps` | which <tokens> attend |\n"
    )
    page = "![shown](../images/figures/dit-shown.png)\n\n<!-- figures of dit -->\n"
    shown = show_figures(page, "families/dit.md", tmp_path)
    assert shown.count("<img") == 2
    assert 'src="../images/figures/dit-forward_pass.svg" alt="Patches &amp; blocks"' in shown
    assert 'src="../images/figures/dit-attention.png" alt="which &lt;tokens&gt; attend"' in shown
    assert show_figures("text", "families/dit.md", tmp_path) == "text"


def test_kinds_of_figures_have_meanings():
    """The page on figures says what each kind shows; guides take it as the caption."""
    meanings = kind_meanings(CHECKOUT / "docs" / "figures.md")
    assert {"attention", "samples", "loss_by_time", "forward_pass"} <= set(meanings)


def test_links_out_of_docs_lead_to_pages_of_those_files():
    pages = RepositoryPages(CHECKOUT, CHECKOUT / "docs")
    text = "[a](../cluster.yaml) [b](data.md#uploads) [c](../experiments/digits/README.md#samples) `[d](../x)` [e](../no)"
    linked = pages.linked_from({"page.md": text})
    assert {"repository/cluster.yaml.md", "repository/experiments/digits/README.md"} <= set(linked)
    # a page of the repository links on
    assert "repository/experiments/digits/dit.yaml.md" in linked
    assert linked["repository/cluster.yaml.md"].startswith("# cluster.yaml\n\n```yaml\n")
    assert pages.relinked(text, "page.md") == (
        "[a](repository/cluster.yaml.md) [b](data.md#uploads) [c](repository/experiments/digits/README.md#samples) `[d](../x)` [e](../no)"
    )
    from_there = pages.relinked(
        "![p](../../docs/images/a.png)", "repository/experiments/digits/README.md"
    )
    assert from_there == "![p](../../../images/a.png)"


@pytest.mark.slow
def test_the_site_is_built_strictly_and_passes_every_check(tmp_path):
    site = build_site(tmp_path / "site")
    assert find_faults(site) == []
    assert "Three doors" in (site / "index.html").read_text()
    for name in ("experiment", "commands", "python", "metrics"):
        assert (site / "reference" / f"{name}.html").stat().st_size > 10_000
