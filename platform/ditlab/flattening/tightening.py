"""A printed program in fewer lines: short docstrings behind what they describe, without sentences
on what is gone, and brackets in as few lines as their content needs.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from ditlab.flattening.sources import is_docstring
from ditlab.flattening.syntax import WIDTH, sentences_of, written_docstring

INDENT = " " * 4
_HEAD = re.compile(r"( *)([^#]*[(\[{])")
_DESCRIBED = re.compile(
    r"^(?P<margin> *)(?P<code>[\w.]+(?:: [^=\n]+)?(?: = .*[^(\[{,\n])?)\n"
    r'(?P=margin)"""(?P<text>.*)"""$',
    re.MULTILINE,
)
_NAME = re.compile(r"`([A-Za-z_][\w.]*)`")


def tighten(text: str) -> str:
    """Return the text of a program in fewer lines, with the same code."""
    text = drop_stale_sentences(text)
    text = _DESCRIBED.sub(_as_comment, join_brackets(text))
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _as_comment(found: re.Match[str]) -> str:
    """Return an assignment with its docstring as a comment, where one line holds both."""
    text = found["text"].strip().removesuffix(".")
    line = f"{found['margin']}{found['code']}  # {text}"
    return line if len(line) <= WIDTH else found[0]


def drop_stale_sentences(text: str) -> str:
    """Leave out the sentences of docstrings, but their first, that name what the program has
    not.
    """
    tree = ast.parse(text)
    known = _names(tree)
    lines = text.splitlines()
    nodes = [each for each in ast.walk(tree) if isinstance(each, ast.stmt) and is_docstring(each)]
    for node in sorted(nodes, key=lambda each: -each.lineno):
        assert isinstance(node, ast.Expr)
        assert node.end_lineno is not None
        kept = _kept_paragraphs(str(ast.literal_eval(node.value)), known)
        if kept is not None:
            margin = " " * node.col_offset
            found = margin + written_docstring(kept, node.col_offset)
            lines[node.lineno - 1 : node.end_lineno] = found.split("\n")
    return "\n".join(lines) + "\n"


def _kept_paragraphs(text: str, known: set[str]) -> list[str] | None:
    """Return what is left of a docstring; None where it stays as it is."""
    is_changed = False
    kept: list[str] = []
    for paragraph in text.split("\n\n"):
        sentences = sentences_of(paragraph)
        current = [each for each in sentences if _is_current(each, known)]
        if not kept and sentences and sentences[0] not in current:
            current.insert(0, sentences[0])
        is_changed = is_changed or current != sentences
        if current:
            kept.append(" ".join(current))
    return kept if is_changed and "\\" not in text else None


def _is_current(sentence: str, known: set[str]) -> bool:
    """Return True for a sentence that names nothing else than the program's names."""
    named = [part for each in _NAME.findall(sentence) for part in each.split(".") if part]
    return known.issuperset(named)


def _names(tree: ast.AST) -> set[str]:
    """Return all names of a program, and its words as strings."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(name=name):
                found.add(name)
            case ast.Constant(value=str() as name):
                found.add(name)
    return found


@dataclass(frozen=True)
class _Bracket:
    """Bracket with one item a line."""

    head: str
    """Line that opens it."""
    items: list[str]
    tail: str
    """Line that closes it."""

    @property
    def is_call(self) -> bool:
        """True for the arguments of a call, or the parameters of a function."""
        return re.search(r"[\w)\]]\($", self.head) is not None

    @property
    def content(self) -> str:
        """Items in one line, without a comma behind the last that is not a tuple's only one."""
        content = " ".join(self.items)
        is_tuple = self.head.endswith("(") and not self.is_call and len(self.items) == 1
        return content if is_tuple else content.removesuffix(",")

    def in_fewer_lines(self) -> list[str] | None:
        """Return the bracket in one line, or its content in one; None where neither fits."""
        whole = f"{self.head}{self.content}{self.tail.strip()}"
        if len(whole) <= WIDTH:
            return [whole]
        margin = self.head[: -len(self.head.lstrip())]
        between = f"{margin}{INDENT}{self.content}"
        if self.is_call and len(self.items) > 1 and len(between) <= WIDTH:
            return [self.head, between, self.tail]
        return None


def join_brackets(text: str) -> str:
    """Write brackets over several lines as a formatter writes their content without the last comma:
    in one line where it fits, else, of calls, between the brackets in one.
    """
    lines = text.split("\n")
    for number in reversed(range(len(lines))):
        bracket = _bracket_at(lines, number)
        shorter = bracket.in_fewer_lines() if bracket else None
        if bracket and shorter:
            lines[number : number + len(bracket.items) + 2] = shorter
    return "\n".join(lines)


def _bracket_at(lines: list[str], number: int) -> _Bracket | None:
    """Return the bracket that a line opens; None where there is none, or one with comments, long
    strings or other brackets over several lines.
    """
    head = _HEAD.fullmatch(lines[number])
    if head is None:
        return None
    deeper = re.compile(rf"{head[1]}{INDENT}[^\s#)\]}}]")
    end = number + 1
    while deeper.match(lines[end]):
        end += 1
    items = [each.strip() for each in lines[number + 1 : end]]
    is_closed = re.match(rf"{head[1]}[)\]}}]", lines[end]) is not None
    if not items or not is_closed or any("#" in each or '"""' in each for each in items):
        return None
    return _Bracket(lines[number], items, lines[end])
