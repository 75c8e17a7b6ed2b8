"""The documents say what is: links and paths resolve, and what is shown whole is the file."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SKIPPED = {".venv", "runs", ".git", "node_modules", "build"}


def documents():
    """Markdown files of the project; folders that are skipped are not entered, as an environment
    has 100,000 files.
    """
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in SKIPPED and ".cache" not in name]
        yield from (
            Path(folder, name) for name in files if name.endswith(".md") and ".cache" not in name
        )


DOCUMENTS = sorted(documents())


def resolves(target):
    """Tell whether a file is there, or a page that is made from the code as the site is built."""
    if target.parent == ROOT / "docs" / "reference":
        return f" reference/{target.name}\n" in (ROOT / "mkdocs.yml").read_text()
    return target.exists()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_local_link_resolves_and_every_path_in_code_marks_exists(document):
    """`tests/ditlab/cli/test_main.py` and the like, from the repository's root."""
    text = document.read_text()
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert not [link for link in links if not resolves((document.parent / link).resolve())]
    paths = re.findall(r"`((?:tests|platform|models|experiments)/[\w/.]+\.(?:py|yaml))`", text)
    existing = [path for path in paths if not path.endswith("__init__.py")]
    assert not [path for path in existing if not (ROOT / path).exists()]


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150


def test_the_spec_that_is_shown_whole_is_the_file():
    text = (ROOT / "docs" / "specs.md").read_text()
    shown = re.search(r"\[(experiments/[\w/]+\.yaml)\][^`]*```yaml\n(.*?)```", text, re.DOTALL)
    assert shown
    lines = (ROOT / shown[1]).read_text().splitlines(keepends=True)
    assert shown[2] == "".join(line for line in lines if not line.startswith("#"))


def test_source_roots_hold_no_init_file():
    """`platform/__init__.py` would shadow Python's own `platform` for anyone with the root on the
    path.
    """
    for folder in ("platform", "models", "tests"):
        assert not (ROOT / folder / "__init__.py").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))
