"""Rules of the house that a machine can check: sizes of files and folders, names used once, first sentences."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
SOURCES = (CHECKOUT / "platform", CHECKOUT / "models")
MOST_FILES = 20  # Python files of a folder; cli/ has a file for each command
MOST_LINES = {"platform": 250, "models": 250, "tests": 400}
NEVER_FIRST = {"What", "Of", "Whether", "Those", "Is", "Which", "By", "That"}
"""Words with which a first sentence is not one that stands alone."""


@cache
def _trees() -> dict[Path, ast.Module]:
    paths = sorted(path for source in SOURCES for path in source.rglob("*.py"))
    return {path.relative_to(CHECKOUT): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def test_files_are_short() -> None:
    long = {}
    for root, most in MOST_LINES.items():
        for path in (CHECKOUT / root).rglob("*.py"):
            if (lines := path.read_text(encoding="utf-8").count("\n")) > most:
                long[str(path.relative_to(CHECKOUT))] = lines
    assert not long


def test_folders_hold_what_one_noun_covers() -> None:
    folders = Counter(path.parent for root in MOST_LINES for path in (CHECKOUT / root).rglob("*.py"))
    full = {str(folder.relative_to(CHECKOUT)): num for folder, num in folders.items() if num > MOST_FILES}
    assert not {name: num for name, num in full.items() if name != "platform/ditlab/cli"}


def test_no_package_shadows_a_standard_module() -> None:
    """With an `__init__.py` there, `import platform` would find the source root in place of Python's own module."""
    assert not [folder for folder in (*SOURCES, CHECKOUT / "tests") if (folder / "__init__.py").exists()]


def test_a_class_name_stands_once() -> None:
    places = defaultdict(list)
    for path, tree in _trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_a_first_sentence_stands_alone() -> None:
    """Docstrings of modules, classes, functions and fields."""
    dialect = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path, tree in _trees().items()
        for line, text in _docstrings(tree)
        if text.split(maxsplit=1)[0].rstrip(",.:;") in NEVER_FIRST
    ]
    assert not dialect, "\n".join(dialect)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield node.body[0].lineno, text
            for before, after in zip(node.body, node.body[1:], strict=False):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                if isinstance(before, ast.AnnAssign | ast.Assign) and is_text and isinstance(after.value.value, str):
                    yield after.lineno, after.value.value


def test_ignored_folders_of_a_job_are_anchored() -> None:
    """An unanchored `runs/` would leave the package `ditlab.runs` out of a job's working directory."""
    lines = (CHECKOUT / ".rayignore").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith(("/", "#")) for line in lines if line)
