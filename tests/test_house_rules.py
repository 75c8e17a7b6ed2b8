"""Rules of the house that a machine can check: few short files and pages, full folders, names once,
first sentences.
"""

import ast
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
SOURCES = (CHECKOUT / "platform", CHECKOUT / "models")
SHORT, MOST_SHORT = 60, 40
"""Lines below which a file is short, and short files at most: a family's objective or sampler."""
DESCRIPTIONS = ("__init__.py", "parts.py", "addon.py")
"""Files of a fixed name that every folder of their kind has, short or not."""
MOST_PAGES = 40
"""Modules that only one module imports, which lies beside them: a noun may stand alone, a page may
not.
"""
FEWEST_FILES = 3
"""Files of a folder, beside `__init__.py`: fewer are files of the folder above."""
MOST_FILES = 26
"""Files of a room: more are folders of their own nouns."""
MOST_BRANCHES = 15
SWAPS = {"platform/ditlab/data/permutations.py"}
"""Files that exchange two values in one assignment."""
BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.IfExp,
    ast.ExceptHandler,
    ast.comprehension,
    ast.Assert,
    ast.match_case,
)
NEVER_FIRST = {"What", "Of", "Whether", "Those", "Is", "Which", "By", "That"}
"""Words with which a first sentence is not one that stands alone."""


@cache
def _trees():
    paths = sorted(path for source in SOURCES for path in source.rglob("*.py"))
    return {path.relative_to(CHECKOUT): ast.parse(path.read_text()) for path in paths}


def test_few_files_are_short():
    short = [
        str(path) for path in _trees() if path.name not in DESCRIPTIONS and _lines(path) < SHORT
    ]
    assert len(short) <= MOST_SHORT, "\n".join(short)


def test_a_module_is_no_page_of_its_only_importer():
    modules = {_module(path): path for path in _trees()}
    importers = defaultdict(set)
    for path, tree in _trees().items():
        for name in _names_imported(tree) if path.name != "__init__.py" else ():
            if (found := modules.get(name)) not in (None, path):
                importers[found].add(path)
    entries = {
        found
        for found, users in importers.items()
        if any(user.name in DESCRIPTIONS for user in users)
    }
    pages = []
    for path, users in importers.items():
        if path.name in ("__init__.py", "__main__.py") or path in entries or len(users) > 1:
            continue
        (user,) = users
        if user.parent == path.parent:
            pages.append(f"{path} of {user.name}")
    assert len(pages) <= MOST_PAGES, "\n".join(sorted(pages))


def test_folders_hold_what_one_noun_covers():
    files = Counter(path.parent for path in _trees() if path.name != "__init__.py")
    # a room that holds folders may have few files of its own
    houses = {folder.parent for folder in files}
    odd = {
        str(folder): num
        for folder, num in files.items()
        if num > MOST_FILES or (num < FEWEST_FILES and folder not in houses)
    }
    assert not odd


def test_a_class_name_stands_once():
    places = defaultdict(list)
    for path, tree in _trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_a_first_sentence_stands_alone():
    """Docstrings of modules, classes, functions and fields."""
    dialect = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path, tree in _trees().items()
        for line, text in _docstrings(tree)
        if text.split(maxsplit=1)[0].rstrip(",.:;") in NEVER_FIRST
    ]
    assert not dialect, "\n".join(dialect)


def test_a_function_has_few_branches():
    """Those in expressions count, too: ruff's C901 does not see them."""
    functions = (
        (path, node)
        for path, tree in _trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    found = [f"{path} {node.name}" for path, node in functions if _branches(node) > MOST_BRANCHES]
    assert not found, "\n".join(found)


def test_values_are_assigned_one_by_one():
    packed = {
        str(path)
        for path, tree in _trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    }
    assert packed == SWAPS


def _branches(function):
    """Number of ways through a function: conditions, loops and operands after the first."""
    count = 1
    for node in ast.walk(function):
        count += isinstance(node, BRANCHES)
        if isinstance(node, ast.comprehension):
            count += len(node.ifs)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


def _names_imported(tree):
    """Yield the names that a file imports, and modules that it names as `module:attribute`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ":" in node.value:
            yield node.value.partition(":")[0]


def _lines(path):
    return (CHECKOUT / path).read_text().count("\n")


def _module(path):
    """Name of a module by its path below the checkout."""
    parts = path.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield node.body[0].lineno, text
            for before, after in pairwise(node.body):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                if is_text and isinstance(before, ast.AnnAssign | ast.Assign):
                    yield after.lineno, str(after.value.value)


def test_ignored_folders_of_a_job_are_anchored():
    """An unanchored `runs/` would leave the package `ditlab.runs` out of a job's working
    directory.
    """
    lines = (CHECKOUT / ".rayignore").read_text().splitlines()
    assert all(line.startswith(("/", "#")) for line in lines if line)
