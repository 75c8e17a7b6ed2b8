"""Commands tell what they wait for: stages, a bar in a notebook, totals at the end."""

import sys
from types import SimpleNamespace

import pytest

from ditlab.api.training import train
from ditlab_addons.notebook import html
from support.trainings.workers import tiny


def test_a_training_names_what_it_waits_for(tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path))
    stages = []
    train(tiny(training__steps=2), local=True, on_stage=stages.append)
    assert stages == ["preparing data", "building the network"]


def test_a_notebook_shows_one_bar_that_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path))
    shown = []
    handle = SimpleNamespace(update=lambda page, raw: shown.append(page))

    def display(page, raw, display_id):
        shown.append(page)
        return handle

    monkeypatch.setattr(
        "ditlab_addons.notebook.html.notebook_bar", lambda: html.NotebookBar(display)
    )
    train(tiny(training__steps=3), local=True)
    assert (
        shown[0]["text/plain"] == "preparing data ..." and "<progress" not in shown[0]["text/html"]
    )
    assert "<progress value='3' max='3'" in shown[-1]["text/html"] and shown[-1][
        "text/plain"
    ].startswith("step 3/3")


@pytest.mark.parametrize(
    "shell, found", [(None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=1), True)]
)
def test_only_a_notebook_has_a_bar(shell, found, monkeypatch):
    import IPython.display  # noqa: F401

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert (html.notebook_bar() is not None) == found


def test_a_secret_is_in_neither_form_of_a_bar(monkeypatch):
    pages = []
    bar = html.NotebookBar(lambda page, **_: pages.append(page))
    bar.stage("connecting to http://ann:s3cret@host:5000 <b>")
    assert "s3cret" not in str(pages) and "<b>" not in pages[0]["text/html"].replace("<b>:", "")
