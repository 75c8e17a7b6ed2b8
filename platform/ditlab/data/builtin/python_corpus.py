"""Documentation of the Python installation as a corpus: nothing is downloaded.

It is the language reference as `help()` shows it (pydoc_data.topics), and the docstrings of the standard library, read
from its source files without importing them. It is the same for every installation of one Python version (parts that
distributions leave out are left out here too), and differs between versions.
"""

import ast
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path

from ditlab.data.text.pieces import Document, TextPiece, pieces

LEFT_OUT = {"ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tests", "tkinter", "turtle", "turtledemo"}
"""Packages left out: those that not every installation has, and tests."""
REPEATED = 80
"""Characters from which a paragraph is kept only once: the reference and docstrings repeat whole sections."""

Entry = tuple[str, str]
"""Heading and the text below it."""


class PythonDocs:
    """Corpus of a document for each topic, by name, then for each module, by path, docstrings in source order."""

    origin = "data.corpus=python-docs"

    def documents(self) -> Iterator[Document]:
        """Iterate over the documents that have text not seen in earlier ones."""
        yield from ([text] for text in self._texts)

    def pieces(self) -> Iterator[TextPiece]:
        """Iterate over the pieces of the documents."""
        return chain.from_iterable(map(pieces, self.documents()))

    @cached_property
    def _texts(self) -> list[str]:
        seen: set[str] = set()
        documents = (*_topics(), *_modules(Path(sysconfig.get_path("stdlib"))))
        texts = ("\n\n".join(_unseen(entries, seen)) for entries in documents)
        return [text for text in texts if text]


def _topics() -> Iterator[list[Entry]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # a Python without its own help
        return
    yield from ([("", topics[name])] for name in sorted(topics))


def _modules(library: Path) -> Iterator[list[Entry]]:
    for file in sorted(_source_files(library)):
        name = ".".join(file.relative_to(library).with_suffix("").parts).removesuffix(".__init__")
        yield list(_docstrings(ast.parse(file.read_bytes()), name))


def _source_files(library: Path) -> Iterator[Path]:
    for package in sys.stdlib_module_names - LEFT_OUT:
        if (module := library / f"{package}.py").is_file():
            yield module
        inside = (library / package).rglob("*.py")
        yield from (file for file in inside if LEFT_OUT.isdisjoint(file.relative_to(library).parts))


def _docstrings(node: ast.AST, name: str) -> Iterator[Entry]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, documented) and (text := ast.get_docstring(node)):
        yield name, text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, documented[1:]):
            yield from _docstrings(child, f"{name}.{child.name}")
        elif isinstance(child, ast.stmt):
            yield from _docstrings(child, name)


def _unseen(entries: Iterable[Entry], seen: set[str]) -> Iterator[str]:
    """Yield the entries without texts and long paragraphs that were seen before."""
    for heading, text in entries:
        whole, kept = " ".join(text.split()), []
        if whole in seen:
            continue
        for paragraph in text.strip().split("\n\n"):
            key = " ".join(paragraph.split())
            if len(key) < REPEATED or key not in seen:
                kept.append(paragraph)
                seen.add(key)
        seen.add(whole)
        if kept:
            yield "\n".join([*filter(None, [heading]), "\n\n".join(kept)])
