"""Notebooks: one for each family, in step with its source, small, plain, and executable."""

import json
import re
import sys
from pathlib import Path

import pytest

from ditlab_models.families import family_names
from support.documents import CHECKOUT
from support.plain_html import PlainHtml
from support.python_process import run_python

FOLDER = CHECKOUT / "docs" / "notebooks"
SHIPPED = ("dit", "dlm", "pixelhdm", "region", "unet")
MOST_BYTES = 600 * 1024


@pytest.fixture
def build(monkeypatch):
    """The script that makes them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "build", raising=False)
    import build

    return build


def notebook_of(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text())


def code_cells(name):
    return [cell for cell in notebook_of(name)["cells"] if cell["cell_type"] == "code"]


def check_outputs(cells):
    """Check what cells show: no error, nothing on standard error, plain HTML, pictures with an
    alternative text, whose number is returned.
    """
    assert len([cell for cell in cells if cell["outputs"]]) > 8
    num_pictures = 0
    for output in (output for cell in cells for output in cell["outputs"]):
        assert output["output_type"] != "error" and output.get("name") != "stderr", output
        data = output.get("data", {})
        if "text/html" in data:
            PlainHtml("".join(data["text/html"]))
        if "image/png" in data:
            assert output["metadata"]["image/png"]["alt"]
            num_pictures += 1
    return num_pictures


def kinds_of(outputs):
    """Forms of each output of a cell: a change tells that a notebook shows what the code no longer
    does. What a cell prints comes in one piece or several, as it is sent."""
    kinds = [
        sorted(output["data"]) if "data" in output else [output["output_type"]]
        for output in outputs
    ]
    return [
        kind
        for kind, before in zip(kinds, [None, *kinds], strict=False)
        if kind != ["stream"] or kind != before
    ]


def test_a_notebook_without_widgets_shows_no_warning_of_them():
    """tqdm warns where it is imported in a notebook's kernel: MLflow, Ray and the hub's client
    import it so.
    """
    kernel = "import sys; sys.modules['ipykernel.zmqshell'] = sys.modules['ipywidgets'] = None; "
    shell = "import types; sys.modules['IPython'] = types.SimpleNamespace(get_ipython=object, version_info=(9,)); "
    for own, warning in (("", "IProgress not found"), ("import ditlab; ", "")):
        said = run_python("-c", f"{kernel}{shell}{own}import tqdm.auto").stderr
        assert warning in said and bool(said) == bool(warning)


def test_each_family_has_one(build):
    assert set(SHIPPED) == set(build.NAMES) and set(SHIPPED) <= set(family_names())
    readme = (FOLDER / "README.md").read_text()
    assert re.findall(r"\]\((\w+)\.ipynb\)", readme) == ["dit", "unet", "region", "dlm", "pixelhdm"]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_notebook_is_in_step_with_its_source(name, build):
    made, source = (
        [(cell["cell_type"], cell["id"], "".join(cell["source"])) for cell in cells]
        for cells in (notebook_of(name)["cells"], build.read_source(name).cells)
    )
    assert made == source, f"run python docs/notebooks/build.py {name}"


@pytest.mark.parametrize("name", SHIPPED)
def test_a_notebook_was_executed_whole_or_not_at_all(name):
    cells = code_cells(name)
    counts = [cell["execution_count"] for cell in cells]
    if not any(counts):
        assert not any(cell["outputs"] for cell in cells)
        return
    assert counts == list(range(1, len(cells) + 1))
    check_outputs(cells)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_notebook_is_small_and_names_no_machine(name):
    text = (FOLDER / f"{name}.ipynb").read_text()
    assert len(text) < MOST_BYTES
    for place in ("/tmp/", "/home/", "/root/", str(CHECKOUT), f"{Path.home()}/"):
        assert place not in text


@pytest.mark.parametrize("name", SHIPPED)
def test_numbers_come_from_cells(name):
    """Text that told a result would be wrong after the next change; formulas, code and links are
    none.
    """
    for cell in notebook_of(name)["cells"]:
        if cell["cell_type"] == "markdown":
            text = re.sub(
                r"\$[^$]*\$|`[^`]*`|\]\([^)]*\)|arXiv:[\d.]+", "", "".join(cell["source"])
            )
            assert not re.findall(r"\d+\.\d+|\d+ ?%", text)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_notebook_is_a_page(name, monkeypatch):
    monkeypatch.syspath_prepend(str(CHECKOUT / "docs" / "hooks"))
    from notebook_pages import notebook_pages

    page = notebook_pages(CHECKOUT / "docs")[f"notebooks/{name}.md"]
    assert page.startswith("# ") and f"({name}.ipynb)" in page and "```python" in page
    outputs = sum(len(cell["outputs"]) for cell in code_cells(name))
    assert page.count('<div class="output">') == outputs
    for block in re.findall(
        r'^<div class="output">.*?</div>$(?=\n\n|\n\Z)', page, re.MULTILINE | re.DOTALL
    ):
        assert "\n\n" not in block  # Markdown would end the HTML there


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SHIPPED)
def test_a_notebook_runs(name, build, tmp_path):
    notebook = build.read_source(name)
    build.execute(notebook, tmp_path / "home")
    cells = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    assert check_outputs(cells) >= 3
    made = code_cells(name)
    if made[0]["outputs"]:
        kinds = [kinds_of(cell["outputs"]) for cell in made]
        assert [kinds_of(cell["outputs"]) for cell in cells] == kinds, (
            f"run build.py --execute {name}"
        )
