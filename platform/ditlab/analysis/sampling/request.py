"""What the command line of `ditlab sample` asks samples to be."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from denoisers.contract import SampleRequest

SAMPLES_PER_PROMPT = 4
"""Where nobody says how many."""
STRENGTH = 0.6
"""Where nobody says how much of an image is drawn anew."""
_NOT_EACH = "this run's family does not draw samples for each of several prompts"

_OPTIONS = (
    click.option("--label", type=int, help="Class to draw; default: every class in turn."),
    click.option(
        "--prompt",
        "prompts",
        multiple=True,
        metavar="TEXT",
        help="Text to images: what they show; repeatable. Language models: what every sample begins with; the model "
        "writes the rest.",
    ),
    click.option(
        "--prompts",
        "prompt_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Text to images: a prompt in every line of a UTF-8 file, empty lines left out.",
    ),
    click.option("--negative-prompt", metavar="TEXT", help="Text to images: what guidance leads away from."),
    click.option(
        "--prompt-at",
        "placed",
        type=(int, str),
        multiple=True,
        metavar="TOKEN TEXT",
        help="Text that every sample holds from this token on (negative: counted from the end). Repeatable: the model "
        "fills in what lies before, between and behind.",
    ),
    click.option("--size", metavar="HxW", help="Text to images: height and width in pixels, or one number for both."),
    click.option(
        "--start",
        type=click.Path(path_type=Path),
        metavar="IMAGE",
        help="Text to images: a picture to start from, scaled and cropped around its centre to the size.",
    ),
    click.option(
        "--strength",
        type=float,
        metavar="SHARE",
        help=f"How much of --start is drawn anew: 1 is all of it, near 0 nothing [default: {STRENGTH}].",
    ),
)


def request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options of `Asked`, under the names of its fields."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Asked:
    """The command line's words, None and () where an option was left out."""

    label: int | None
    prompts: tuple[str, ...]
    prompt_file: Path | None
    negative_prompt: str | None
    placed: tuple[tuple[int, str], ...]
    size: str | None
    start: Path | None
    strength: float | None


def sample_request(asked: Asked, seed: int | None, sampler: Any) -> "SampleRequest":
    """What the sampler is asked for. `seed` is that of a first sample where seeds count on from there.

    Raises UserError for an option that the sampler's family does not take, and for one that cannot be read.
    """
    from denoisers.contract import Prompt, SampleRequest
    from ditlab.analysis.sample_pictures import start_image
    from ditlab.errors import UserError

    _check_taken(asked, sampler)
    if asked.strength is not None and asked.start is None:
        raise UserError(f"--strength {asked.strength:g} needs a picture to start from; name one with --start.")
    size = None if asked.size is None else _size(asked.size)
    texts = [*asked.prompts, *([] if asked.prompt_file is None else _lines(asked.prompt_file))]
    prompts = [*map(Prompt, texts), *(Prompt(text, position) for position, text in asked.placed)]
    request = SampleRequest(asked.label, prompts, asked.negative_prompt, size=size)
    if sampler.draws_per_prompt and seed is not None:
        request = replace(request, seed=seed)
    if asked.start is not None:
        strength = STRENGTH if asked.strength is None else asked.strength
        request = replace(request, start=start_image(asked.start, size or sampler.size), strength=strength)
    return request


def num_samples(num: int | None, request: "SampleRequest", sampler: Any) -> int | None:
    """How many are drawn where `num` is asked for: so many of each prompt, where each has samples of its own."""
    if sampler.draws_per_prompt and request.prompts:
        return (num or SAMPLES_PER_PROMPT) * len(request.prompts)
    return num


def folder_name(step: int, sampling: Mapping[str, Any], choice: str | None, request: "SampleRequest", seed: int) -> str:
    """`step400-euler-50-1.0-seed0`: what the samples depend on; of long values, paths among them, the end."""
    from ditlab.tracking.parameters import flatten

    parts = [f"step{step}", *flatten(sampling).values(), *filter(None, [choice])]
    parts += [] if request.label is None else [f"label{request.label}"]
    if request.prompts:
        parts += ["prompt" + _digest(repr(list(request.prompts)).encode())]
    if request.negative_prompt is not None:
        parts += ["negative" + _digest(repr(request.negative_prompt).encode())]
    if request.size is not None:
        parts += ["{}x{}".format(*request.size)]
    if request.start is not None:
        parts += ["start" + _digest(request.start.numpy().tobytes()), f"{request.strength:g}"]
    # a seed that was asked for is the first sample's own; the run's gives every sample one
    parts += [f"seed{seed}" if request.seed is None else f"first{request.seed}"]
    return "-".join(re.sub(r"[^\w.+-]+", "_", part)[-40:] for part in parts)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _check_taken(asked: Asked, sampler: Any) -> None:
    """Raises UserError for an option that this sampler has no use for. It refuses the others itself."""
    from denoisers.contract import PicturingSampler
    from ditlab.errors import UserError

    if not sampler.draws_per_prompt:
        if asked.prompt_file is not None:
            raise UserError(f"--prompts {asked.prompt_file}: {_NOT_EACH}; leave it out.")
        if len(asked.prompts) > 1:
            raise UserError(f"--prompt was given {len(asked.prompts)} times: {_NOT_EACH}; give it once.")
        if asked.negative_prompt is not None:
            raise UserError(
                f"--negative-prompt {asked.negative_prompt!r}: this run's family avoids no text; leave it out."
            )
    if not isinstance(sampler, PicturingSampler):
        if asked.size is not None:
            raise UserError(f"--size {asked.size}: this run's family draws samples of one size; leave it out.")
        if asked.start is not None:
            raise UserError(f"--start {asked.start}: this run's family starts from no picture; leave it out.")


def _size(text: str) -> tuple[int, int]:
    from ditlab.errors import UserError

    sides = re.fullmatch(r"(\d{1,4})(?:x(\d{1,4}))?", text)
    if sides is None:
        raise UserError(
            f"--size {text}: write height x width in pixels (at most 9999), such as 256x192, or one number."
        )
    return int(sides[1]), int(sides[2] or sides[1])


def _lines(path: Path) -> list[str]:
    """The lines of a file that hold text. Raises UserError where there are none, and for a file that is no text."""
    from ditlab.errors import UserError

    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"--prompts {path} is not UTF-8 (at byte {error.start}); save it as UTF-8, a prompt in every line."
        ) from error
    except OSError as error:
        raise UserError(
            f"--prompts {path} cannot be read ({error.strerror or error}); name a file with a prompt in every line."
        ) from error
    lines = [line.strip() for line in text.split("\n")]
    if not any(lines):
        raise UserError(f"--prompts {path} holds no prompt; write one in every line.")
    return [line for line in lines if line]
