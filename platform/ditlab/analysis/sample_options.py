"""Options of drawing samples from a run or an export, and changed fields of a finished run. Imports
no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ditlab.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from ditlab.spec.overrides import Assignment


NUMBER = re.compile(r"-?[0-9]{1,9}")
SAMPLES_PER_PROMPT = 4
"""Samples of each prompt where no number is given."""
STRENGTH = 0.6
"""Share of a start image that is drawn again where no strength is given."""
SECTIONS = ("sampling", "encoders")
"""Sections of an experiment that may change after training: encoders may lie elsewhere than where
the run trained.
"""
SCORER = ["evaluation", "scorer"]
"""Keys of the one other part: the language model that measures drawn text."""


class SampleKeywords(TypedDict, total=False):
    """Keyword arguments of `sample`; the options of `ditlab sample`, and `noise`."""

    solver: str | None
    """Solver, by the family's name for it."""
    steps: int | None
    """Solver steps."""
    guidance: float | None
    """Scale of classifier-free guidance; 1 is the conditional model as it is."""
    label: int | str | None
    """Class of every sample: its number, or its name in the run's data. None: every class in
    turn.
    """
    prompts: Sequence[str]
    """Prompts; a language model takes one, the text that every sample begins with."""
    prompt_file: str | Path | None
    """UTF-8 file with a prompt in every line."""
    negative_prompt: str | None
    """Prompt that guidance leads away from."""
    placed: Sequence[tuple[int, str]]
    """(token, text): texts that every sample holds from a token on; negative tokens are counted
    from the end.
    """
    size: str | int | tuple[int, int] | None
    """(height, width) in pixels, `"HxW"`, or one number for both."""
    start: str | Path | None
    """Image file that sampling starts from."""
    strength: float | None
    """Share of `start` that is drawn again, in (0, 1]."""
    seed: int | None
    """Seed. None: the run's, which gives the pictures of its evaluations."""
    noise: Tensor | None
    """Noise that samples begin with, (num, *sample shape), in place of the seed's; tokens for a
    language model.
    """
    trajectory: bool
    """Keep every solver step."""
    data: str | Path | None
    """Rows to complete: `held_out`, `train`, or a store by folder or name."""
    batch: int
    """Samples drawn in one batch; lower it where memory is short."""
    compile: bool
    """Compile the network's blocks first, which takes up to a minute."""
    ema: str | float | None
    """Relative length of an average that is rebuilt from those that the run has kept. None: the
    checkpoint's own.
    """
    overrides: Sequence[str]
    """`sampling.KEY=VALUE` and `encoders.KEY=VALUE`."""


@dataclass(frozen=True)
class SampleOptions:
    """The number of samples and the values of `SampleKeywords` in one form each, defaults
    included.
    """

    num: int | None = None
    """Number of samples, of each prompt where each has samples of its own. None: 64, or 4 of each
    prompt, or all rows that `sampling` selects."""
    solver: str | None = None
    steps: int | None = None
    guidance: float | None = None
    label: int | str | None = None
    prompts: Sequence[str] = ()
    prompt_file: Path | None = None
    negative_prompt: str | None = None
    placed: Sequence[tuple[int, str]] = ()
    size: str | None = None
    start: Path | None = None
    strength: float | None = None
    seed: int | None = None
    noise: Tensor | None = field(default=None, compare=False)
    trajectory: bool = False
    data: str | None = None
    batch: int = 256
    compile: bool = False
    ema: str | None = None
    overrides: Sequence[str] = ()

    @classmethod
    def of(cls, num: int | None, keywords: SampleKeywords) -> SampleOptions:
        """Bring keyword arguments of `sample` into this form: paths, texts, class numbers and
        tuples.
        """
        given: dict[str, Any] = {
            name: value for name, value in keywords.items() if value is not None
        }
        size = given.get("size")
        if isinstance(size, tuple):
            given["size"] = "{}x{}".format(*size)
        forms: dict[str, Callable[[Any], Any]] = dict.fromkeys(("size", "data", "ema"), str)
        forms |= dict.fromkeys(("prompt_file", "start"), Path)
        forms |= dict.fromkeys(("prompts", "placed", "overrides"), tuple)
        return cls(
            num,
            **{
                name: forms[name](value) if name in forms else value
                for name, value in given.items()
            },
        )

    def changes(self) -> list[Assignment]:
        """Return the changes of the experiment that the options ask for. Raises UserError."""
        return sampling_changes(
            {"solver": self.solver, "steps": self.steps, "guidance": self.guidance}, self.overrides
        )


def sampling_changes(given: Mapping[str, Any], overrides: Sequence[str]) -> list[Assignment]:
    """Assignments for `given` fields of `sampling` and `--set` texts. Raises UserError for other
    sections.
    """
    from ditlab.spec.overrides import Assignment, parse_overrides  # pydantic: completion needs none

    changes = [
        Assignment(f"sampling.{name}", value, f"--{name} {value}")
        for name, value in given.items()
        if value is not None
    ]
    for change in parse_overrides(overrides):
        if change.keys[:2] != SCORER and (change.keys[0] not in SECTIONS or len(change.keys) < 2):
            raise UserError(
                f"{change.source}: a finished run takes sampling settings and other places of "
                "its encoders alone; write --set sampling.KEY=VALUE, --set encoders.KEY=VALUE "
                "or --set evaluation.scorer.model=FOLDER."
            )
        changes.append(change)
    return changes
