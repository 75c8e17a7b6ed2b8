"""Files of code that an exported folder carries, put together from sources: the same sources give
the same bytes.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = "ditlab_models"
NOT_SAMPLED = ("build_objective", "build_evaluator", "static_figures", "example_inputs")
"""Methods of a family that no sampler calls: what they import is not copied."""
PLACE = "SOURCES: dict[str, str] = {}\n"
IMPORT = re.compile(r"^from ditlab\S* import .*\n+", re.M)


def torch_module(family: str) -> str:
    """Return the module that rebuilds networks of a family and samples from them, without
    DiTLab.
    """
    literals = (
        f"    {name!r}: {_literal(text)},\n" for name, text in sorted(_sources(family).items())
    )
    return _template("module").replace(
        PLACE, f"SOURCES: dict[str, str] = {{\n{''.join(literals)}}}\n"
    )


def diffusers_network(family: str) -> str:
    """Return the module of a network of a family as a model of diffusers."""
    _, own = IMPORT.sub("", _template("diffusers_network")).split(
        "from __future__ import annotations\n", 1
    )
    return torch_module(family) + own


def pipeline() -> str:
    """Return the module of a pipeline of diffusers."""
    return _template("pipeline")


def _template(name: str) -> str:
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")


def _literal(text: str) -> str:
    """Return Python's spelling of a source with a bar before each line, readable where raw quotes
    hold it.
    """
    barred = textwrap.indent(text, "|", lambda line: True)
    if "'''" not in text:
        return f"r'''{barred}'''"
    return repr(barred)


def _sources(family: str) -> dict[str, str]:
    """Return the source of each module of `ditlab_models` that network and sampler of a family
    import, by its name.
    """
    found: dict[str, str] = {}
    waiting = [f"{ROOT}.{family}.family", f"{ROOT}.contract", f"{ROOT}.processes.draws"]
    while waiting:
        name = waiting.pop()
        inner = name.removeprefix(f"{ROOT}.")
        if name == ROOT or inner in found or not (path := _path(name)):
            continue
        text = path.read_text(encoding="utf-8")
        if path.name != "__init__.py":
            found[inner] = text
        waiting.extend(_imports(ast.parse(text)))
    return found


def _path(name: str) -> Path | None:
    """Return the file of a module; None for what is no module, such as a function that is imported
    from one.
    """
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.origin else None


def _imports(tree: ast.AST) -> Iterator[str]:
    """Yield the names of modules below `ditlab_models`, and perhaps others, that code imports."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name in NOT_SAMPLED:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == ROOT:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        yield from _imports(node)
