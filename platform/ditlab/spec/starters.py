"""Experiments that come with DiTLab, and a spec made of one: what `ditlab new` writes."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

from ditlab.errors import UserError, nearest
from ditlab.spec.experiment import check_name
from ditlab.spec.files import read_with_parents
from ditlab.spec.yaml_text import dump_yaml


def shipped() -> dict[str, Path]:
    """YAML files of experiments and sweeps by name, such as `digits/dit`: the wheel's, or else the checkout's."""
    package = Path(__file__).resolve().parents[1]
    folders = [folder for folder in (package, package.parents[1]) if (folder / "experiments").is_dir()]
    root = folders[0] / "experiments"
    return {str(path.relative_to(root).with_suffix("")): path for path in sorted(root.glob("*/*.yaml"))}


def describe(path: Path) -> str:
    """Return the first sentence of the comment that a shipped file begins with."""
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return re.split(r"(?<=\.)\s|:\s\s", " ".join(line[2:] for line in lines))[0]


def write_spec(target: str, like: str) -> Path:
    """Write `target`.yaml, a spec with the content of the shipped one named `like`, and return its path.

    Parents, and the base of a sweep, are written out in it.

    Raises UserError for an unknown `like`, a name that no run can have, and a file that exists or cannot be written.
    """
    known = shipped()
    path = Path(re.sub(r"\.ya?ml$", "", target) + ".yaml")
    if like not in known:
        raise UserError(f"--like {like} is none of the experiments that come with DiTLab; {nearest(like, list(known))}")
    try:
        text = _text(path, check_name(path.stem), like, known[like])
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists, and is left as it is; give another NAME, or move it away.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); give another NAME.") from None
    except ValueError as error:
        raise UserError(str(error)) from None
    return path


def _text(path: Path, name: str, like: str, shown: Path) -> str:
    """Return the text of a spec that is made of a shipped one."""
    mapping = {**read_with_parents(shown), "name": name}
    if isinstance(base := mapping.get("base"), str):
        mapping["base"] = read_with_parents(Path(base))
    lines = (
        f"# Made by `ditlab new` from {like}: {describe(shown)}",
        f"# `ditlab show {path}` prints every field; those that are left out have defaults.",
        dump_yaml(mapping),
    )
    return "\n".join(lines)
