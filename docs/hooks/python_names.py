"""The Python interface's reference, from signatures and docstrings of `dir(ditlab)`."""

import inspect
import re
from typing import Any

import ditlab

INTRODUCTION = """# Python

Made from the docstrings of what `import ditlab` offers. [A page to read first](../python.md).

"""


def python_page() -> str:
    """Return the page: a section for each name."""
    names = [name for name in dir(ditlab) if not name.startswith("__")]
    return INTRODUCTION + "\n".join(_section(name, getattr(ditlab, name)) for name in names)


def _section(name: str, thing: Any) -> str:
    if not inspect.isclass(thing):
        return f"## {name}\n\n{_signature(name, thing)}\n{_prose(thing)}\n"
    text = f"## {name}\n\n{_prose(thing)}\n"
    checks = getattr(thing, "__pydantic_decorators__", None)
    hidden = {*checks.field_validators, *checks.model_validators} if checks else set()
    hidden |= set(getattr(thing, "__dataclass_fields__", ()))  # a default may be a function
    for member, value in vars(thing).items():
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if (
            member.startswith("_")
            or member in hidden
            or not inspect.isfunction(inner)
            or not inspect.getdoc(inner)
        ):
            continue
        shown = (
            f"```python\n{name}.{member}\n```\n"
            if isinstance(value, property)
            else _signature(f"{name}.{member}", inner)
        )
        text += f"\n### {name}.{member}\n\n{shown}\n{_prose(inner)}\n"
    return text


def _signature(name: str, function: Any) -> str:
    """Write a signature, one parameter a line where it is long."""
    found = inspect.signature(function)
    kept = [each for each in found.parameters.values() if each.name != "self"]
    text = str(found.replace(parameters=kept))
    # quoted annotations, modules
    for pattern in (r"'([^']*)'(?=[,)\]= ]|$)", r"\b(?:[a-z_]\w*\.)+(?=[A-Z]\w*)"):
        text = re.sub(pattern, lambda match: match[1] if match.lastindex else "", text)
    if len(name + text) > 90:
        inside, _, end = text[1:].rpartition(")")
        text = "(\n    " + ",\n    ".join(_split(inside)) + f",\n){end}"
    return f"```python\n{name}{text}\n```\n"


def _split(inside: str) -> list[str]:
    """Split parameters at the commas that lie in no bracket."""
    parts, depth = [""], 0
    for character in inside:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _prose(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").replace("<", "&lt;")
