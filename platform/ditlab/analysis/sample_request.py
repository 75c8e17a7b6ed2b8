"""From sample options to a sampler's request: classes by their names, image files that sampling starts from."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from denoisers.contract import Picture, PicturingSampler, Prompt, SampleRequest
from ditlab.analysis.sample_options import SAMPLES_PER_PROMPT, STRENGTH, SampleOptions
from ditlab.data.images.decoding import BROKEN, FORMATS, MAX_PIXELS, TooManyPixels, in_rgb, open_picture
from ditlab.errors import UserError, first_line
from ditlab.storage.files import write_whole
from ditlab.storage.plain_files import MIB, read_plain
from ditlab.tracking.names import flatten

PROMPTS_BYTES = 16 * MIB
"""Most bytes of a file of prompts."""
LABEL = "label"
"""Column of classes."""
_MOST_NAMES = 30
PREFIX = "ditlab."
"""Prefix of the keys of a PNG's texts."""


def sample_request(options: SampleOptions, sampler: Any) -> SampleRequest:
    """The request that `options` describe. Raises UserError for one that the family does not take, or is unreadable."""
    _check_taken(options, sampler)
    if options.strength is not None and options.start is None:
        raise UserError(f"--strength {options.strength:g} needs a picture to start from; name one with --start.")
    size: tuple[int, int] | None = None
    if options.size is not None:
        sides = re.fullmatch(r"(\d{1,4})(?:x(\d{1,4}))?", options.size)
        if sides is None:
            raise UserError(
                f"--size {options.size}: write height x width in pixels (at most 9999), such as 256x192, or one number."
            )
        size = int(sides[1]), int(sides[2] or sides[1])
    texts = [*options.prompts, *(prompt_lines(options.prompt_file) if options.prompt_file else [])]
    prompts = [*map(Prompt, texts), *(Prompt(text, position) for position, text in options.placed)]
    if isinstance(options.label, str):
        raise UserError(f"--label {options.label}: an export knows no names of classes; give the class's number.")
    request = SampleRequest(options.label, prompts, options.negative_prompt, size=size)
    if sampler.draws_per_prompt and options.seed is not None:
        request = replace(request, seed=options.seed)
    if options.start:
        strength = STRENGTH if options.strength is None else options.strength
        request = replace(request, start=start_image(options.start, size or sampler.size), strength=strength)
    return request


def num_samples(num: int | None, request: SampleRequest, sampler: Any, noise: Tensor | None = None) -> int | None:
    """The number of samples to draw: `num` of each prompt, where each has samples of its own; without `num`, as many as
    there is noise for."""
    if num is None and noise is not None:
        return len(noise)
    if sampler.draws_per_prompt and request.prompts:
        return (num or SAMPLES_PER_PROMPT) * len(request.prompts)
    return num


def folder_name(
    step: int, sampling: Mapping[str, Any], choice: str | None, request: SampleRequest, seed: int, noise: Any = None
) -> str:
    """Folder name such as `step400-euler-50-1.0-seed0`: everything that the samples depend on; long values, paths among
    them, are cut to their ends."""
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
    if noise is not None:
        parts += ["noise" + _digest(noise.detach().double().cpu().numpy().tobytes())]
    # a requested seed is the first sample's own; the run's gives every sample one
    parts += [f"seed{seed}" if request.seed is None else f"first{request.seed}"]
    return "-".join(re.sub(r"[^\w.+-]+", "_", part)[-40:] for part in parts)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _check_taken(options: SampleOptions, sampler: Any) -> None:
    """Raise UserError for an option that this sampler does not take; the sampler refuses the others itself."""
    if options.noise is not None:
        if not isinstance(options.noise, Tensor) or options.noise.ndim == 0:
            raise UserError("noise must be a torch.Tensor, its first axis that of samples: torch.randn(4, 1, 8, 8).")
        if "noise" not in signature(sampler.sample).parameters:
            raise UserError("noise was given, and this run's family takes none (its sampler); leave it out.")
    refused: dict[str, Any] = {}
    if not sampler.draws_per_prompt:
        if len(options.prompts) > 1:
            raise UserError(f"--prompt was given {len(options.prompts)} times: this run's family takes one; give one.")
        refused = {"--prompts": options.prompt_file, "--negative-prompt": options.negative_prompt}
    if not isinstance(sampler, PicturingSampler):
        refused |= {"--size": options.size, "--start": options.start}
    for option, value in refused.items():
        if value is not None:
            raise UserError(f"{option} {value}: this run's family takes no {option}; leave it out.")


def prompt_lines(path: Path) -> list[str]:
    """Non-empty lines of a text file. Raises UserError where there are none, and for a file that is no text."""
    try:
        text = read_plain(path, PROMPTS_BYTES, follow=True).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--prompts {path} cannot be read ({first_line(error)}); name a UTF-8 file with a prompt in every line."
        ) from error
    lines = list(filter(None, map(str.strip, text.split("\n"))))
    if not lines:
        raise UserError(f"--prompts {path} holds no prompt; write one in every line.")
    return lines


def class_number(name: str, names: Sequence[str]) -> int:
    """Return the number of a class. Raises UserError for an unknown name."""
    if name in names:
        return list(names).index(name)
    if not names:
        raise UserError(f"--label {name}: this run's data have no names of classes; give the class's number.")
    listed = ", ".join(names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    raise UserError(f"--label {name} is no class of this run's data; their names are {listed}{more}.")


def start_image(path: Path, size: tuple[int, int]) -> Tensor:
    """Read a picture as (3, height, width) float32 in [-1, 1], fitted to `size` around its centre. Raises UserError."""
    height, width = size
    try:
        with warnings.catch_warnings(action="ignore"), open_picture(path) as image:
            fitted = ImageOps.fit(in_rgb(ImageOps.exif_transpose(image)), (width, height), Image.Resampling.LANCZOS)
    except TooManyPixels as error:
        raise UserError(f"--start {path} has {error}, and at most {MAX_PIXELS:,} are read; scale it down.") from error
    except BROKEN as error:
        reason = getattr(error, "strerror", None) or f"no picture in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise UserError(f"--start {path} cannot be read ({reason}); name another picture.") from error
    pixels = torch.from_numpy(np.asarray(fitted, dtype=np.float32).transpose(2, 0, 1).copy())
    return pixels / 127.5 - 1


def save_pictures(pictures: Sequence[Picture], origin: Mapping[str, str], folder: Path) -> Iterator[Path]:
    """Write `000.png`, ..., each with `origin` and its settings as texts `ditlab.KEY`. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    digits = max(3, len(str(len(pictures) - 1)))
    for number, picture in enumerate(pictures):
        texts = PngInfo()
        for name, text in {**origin, **picture.settings}.items():
            texts.add_itxt(PREFIX + name, text)
        content = BytesIO()
        Image.fromarray(picture.pixels).save(content, format="PNG", pnginfo=texts)
        yield write_whole(folder / f"{number:0{digits}d}.png", content.getvalue())
