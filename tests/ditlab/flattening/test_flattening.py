"""A program printed from its sources computes what they do, without what its specs never take."""

import importlib
import sys

import pytest

from ditlab.flattening.printing import print_program
from ditlab.flattening.program import Program
from ditlab.flattening.units import Unit

SPECS = '''
from pydantic import BaseModel


class Spec(BaseModel):
    """A spec."""


class InnerSpec(Spec):
    """Settings below."""

    scale: float = 2.0
    """A factor."""


class ToySpec(Spec):
    """Settings of a toy."""

    kind: str = "b"
    """Name of the branch that is taken."""
    width: int = 3
    """Numbers of a layer."""
    unused: int = 7
    """Nobody reads it."""
    inner: InnerSpec = InnerSpec()
    """More settings."""

    @property
    def double(self) -> int:
        """Twice the width."""
        return 2 * self.width


class OtherSpec(Spec):
    """Settings that the program has none of."""
'''
CODE = '''
"""A module."""

from dataclasses import dataclass

from toy.specs import OtherSpec, ToySpec

TABLE = {"a": min, "b": max}
"""Functions by kind."""


def branches(spec: ToySpec, x: float) -> float:
    """Take one of three branches."""
    if spec.kind == "a":
        return x
    elif spec.kind == "b":
        # a comment that stays
        y = x * spec.inner.scale
    else:
        y = -x
    return y if spec.kind != "a" and x > 0 else branches_never(x)


def branches_never(x: float, sign: int = 1, mode: str = "plain") -> float:
    """Nobody passes a mode."""
    if mode == "plain":
        return x * sign
    return forgotten(x)


def forgotten(x: float) -> float:
    """Never called."""
    return x


def looked_up(spec: ToySpec, x: float) -> float:
    """Look a function up."""
    return TABLE[spec.kind](x, spec.double)


def kind_of(spec: ToySpec | OtherSpec) -> str:
    """Tell the class of a spec."""
    if isinstance(spec, OtherSpec):
        return "other"
    return spec.kind


class Holder:
    """Holds what nobody reads beside what is read."""

    def __init__(self, spec: ToySpec, note: str) -> None:
        self.width = spec.width
        self.note = note
        """A word that nobody reads."""

    def wide(self, by: int | None = None) -> int:
        """Return the width."""
        if by is None:
            return self.width
        return self.width + by

    def never(self) -> str:
        """Return the note."""
        return self.note


def held(spec: ToySpec) -> int:
    """Use a holder."""
    return Holder(spec, "a note").wide()


@dataclass(frozen=True)
class Request:
    """Names that are asked for."""

    names: tuple[str, ...] = ()
    """Names."""


NOTHING = Request()
"""A request of nothing."""


def refuse(request: Request) -> None:
    """Raise ValueError for names."""
    if request.names:
        raise ValueError("names")


def summed(values: list[float], start: float = 0.0, request: Request = NOTHING) -> float:
    """Sum values. `start` is added first. The sum is exact.

    It is slow.

    Its rounding is that of Kahan (1965).
    """
    refuse(request)
    for name in request.names:
        values.append(len(name))
    found = []
    for value in values:
        found.append(value)
    return sum(found)


def requests(spec: ToySpec) -> float:
    """Use a request that nobody makes, and brackets around a condition that never holds."""
    is_wide = spec.width == 3 or (
        spec.kind != "b" and spec.unused > 0
    )
    return summed([1.0, 2.0] if is_wide else [])
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A package of two modules: specs, and code that they decide."""
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "specs.py").write_text(SPECS)
    (folder / "code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("toy", "toy.specs", "toy.code", "flat"):
        sys.modules.pop(name, None)


def flattened(folder, name):
    """Print the program of a function of the toy, and import it."""
    from toy.specs import ToySpec

    program = Program([Unit("toy.code", name)], [ToySpec()], packages=("toy",))
    text = "".join(print_program(program))
    (folder / "flat.py").write_text(f"from __future__ import annotations\n\n{text}")
    return text, importlib.import_module("flat")


@pytest.mark.parametrize(
    ("name", "arguments", "kept", "gone"),
    [
        (
            "branches",
            (1.5,),
            ("# a comment that stays", "scale: float = 2.0"),
            ("-x", "elif", "kind"),
        ),
        (
            "branches",
            (-1.5,),
            ("def branches_never(x: float, sign: int = 1)",),
            ("forgotten", "mode:", "unused"),
        ),
        ("looked_up", (9.0,), ("max(x, spec.double)",), ("TABLE", "min")),
        ("kind_of", (), ('return "b"',), ("OtherSpec", "isinstance")),
        ("held", (), ("def wide(self)", "Holder(spec)"), ("note", "by", "never")),
        (
            "requests",
            (),
            ("def summed(values: list[float])", "Sum values. The sum is exact.", "It is slow."),
            ("refuse", "Request", "request:", "`start`", "(\n", "unused"),
        ),
    ],
)
def test_a_function_does_the_same_without_what_is_never_taken(toy, name, arguments, kept, gone):
    import toy.code as original
    from toy.specs import ToySpec

    text, found = flattened(toy, name)
    spec = getattr(found, "ToySpec", lambda: None)()
    assert getattr(found, name)(spec, *arguments) == getattr(original, name)(ToySpec(), *arguments)
    assert [part for part in kept if part not in text] == []
    assert [part for part in gone if part in text] == []


def test_two_definitions_of_one_name_are_refused(toy):
    from toy.specs import ToySpec

    (toy / "toy/more.py").write_text("def held() -> int:\n    return 1\n")
    roots = [Unit("toy.code", "held"), Unit("toy.more", "held")]
    with pytest.raises(ValueError, match="both define held"):
        print_program(Program(roots, [ToySpec()], packages=("toy",)))


def test_brief_docstrings_keep_what_cites_a_source(toy):
    from toy.specs import ToySpec

    program = Program([Unit("toy.code", "requests")], [ToySpec()], packages=("toy",), is_brief=True)
    _, text = print_program(program)
    assert "It is slow." not in text
    assert "Its rounding is that of Kahan (1965)." in text


def test_a_spec_that_may_change_decides_no_branch(toy):
    from toy.specs import ToySpec

    program = Program(
        [Unit("toy.code", "branches")], [], [ToySpec()], read=["inner"], packages=("toy",)
    )
    _, text = print_program(program)
    assert "elif" in text
    assert 'kind: str = "b"' in text
