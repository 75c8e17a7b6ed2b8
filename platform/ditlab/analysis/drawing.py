"""Samples drawn from the weights of a run or of an export: the request, the drawing, files and
notebooks' pictures.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from io import BytesIO
from pathlib import Path
from time import perf_counter
from typing import Any, Unpack

import numpy as np
import torch
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo
from safetensors.torch import save_file
from torch import Tensor, nn

from ditlab.analysis.averages import with_average
from ditlab.analysis.opened_run import (
    SavedRun,
    chosen_rows,
    computing_threads,
    default_device,
)
from ditlab.analysis.plot import Plot
from ditlab.analysis.sample_options import (
    NUMBER,
    SAMPLES_PER_PROMPT,
    STRENGTH,
    SampleKeywords,
    SampleOptions,
)
from ditlab.analysis.user_errors import building, output_folder, writing
from ditlab.data.images.captions import LABEL
from ditlab.data.images.pictures import (
    BROKEN,
    FORMATS,
    MAX_PIXELS,
    TooManyPixels,
    open_picture,
)
from ditlab.data.stores.view import View
from ditlab.data.text.tokenizer import TOKENIZER_NAME, open_tokenizer, text_codec
from ditlab.engine.memory import kept_memory
from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.inputs.conditions import (
    DEFAULT_NUM_SAMPLES,
    num_selected_rows,
    rows_for_samples,
    sample_conditions,
)
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed
from ditlab.progress import Progress, ignore, ignore_progress
from ditlab.quality.images import npz_of_images
from ditlab.quality.sample_quality import draw_reported
from ditlab.reports.text_file import save_table, save_text
from ditlab.runs.cores import computing_beside_others
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.files import build_experiment
from ditlab.spec.overrides import assign
from ditlab.storage.files import write_whole
from ditlab.storage.plain_files import MIB, read_plain
from ditlab.tracking.journal import recorded_dataset
from ditlab.tracking.names import flatten
from ditlab.training.export import SPEC_NAME, WEIGHTS_NAME, check_export, load_checked
from ditlab_models.contract import (
    BatchField,
    Picture,
    PicturingSampler,
    Prompt,
    RealRows,
    Sampler,
    SampleRequest,
    Samples,
    TextCodec,
)
from ditlab_models.figures import ImageGrid
from ditlab_models.figures import Text as TextPanel
from ditlab_models.pixels import num_not_finite, to_pixels

_log = logging.getLogger("ditlab")
PROMPTS_BYTES = 16 * MIB
"""Most bytes of a file of prompts."""
_MOST_NAMES = 30


def draw(
    saved: SavedRun,
    options: SampleOptions,
    network: nn.Module | None = None,
    inputs: ModelInputs | None = None,
) -> SampleSet:
    """Draw samples from a run's averaged weights, else its weights. Raises UserError for options
    that do not fit.

    `network`, with the weights of `options.ema`, and `inputs` are those of an earlier call; None:
    opened here.
    """
    recorded = recorded_dataset(saved.folder.journal)
    if isinstance(options.label, str):
        names = recorded.get("classes", {}).get(LABEL, ())
        number = class_number(options.label, names)
        if number < len(names):
            saved.warn(
                f"--label {options.label} is class {number} of the run's data, {names[number]}."
            )
        options = replace(options, label=number)
    experiment = saved.experiment_with(options.changes())
    saved.check_encoders(experiment)
    sampler = saved.sampler(experiment)
    request = replace(sample_request(options, sampler), classes=recorded.get("sampled", ()))
    view: View | None = None
    if sampler.takes_rows == "completed":
        view = chosen_rows(saved, experiment.batch_fields(), options.data)
    elif options.data is not None:
        raise UserError(
            f"--data {options.data}: this run's family draws from noise alone and completes no "
            "rows; leave it out."
        )
    elif sampler.takes_rows == "conditions" and not request.prompts:
        view = rows_for_samples(saved.data())
    if inputs is None:
        columns = view.columns if view else ()
        inputs = ModelInputs.from_experiment(
            experiment, columns, default_device(), saved.warn, saved.home
        )
    device = inputs.device

    def open_network() -> nn.Module:
        if network is not None:
            return network
        with with_average(saved, options.ema) as averaged:
            return averaged.network(device)

    owner = saved.folder.run_id
    folder = saved.folder.path
    place = (saved.step, owner, folder, saved.home, view, saved.warn, saved.progress)
    return draw_set(options, experiment, sampler, request, inputs, open_network, *place)


def draw_set(
    options: SampleOptions,
    experiment: Experiment,
    sampler: Any,
    request: SampleRequest,
    inputs: ModelInputs,
    open_network: Callable[[], nn.Module],
    step: int,
    owner: str,
    folder: Path,
    home: Home,
    view: View | None = None,
    warn: Callable[[str], None] = ignore,
    progress: Progress = ignore_progress,
) -> SampleSet:
    """Draw samples in batches of `options.batch`, on the device of `inputs`, with the weights of a
    step.

    `owner`: the run, or the export's name, whose weights they are; `folder`: below it are its
    `samples`; `home` keeps compilers' caches; `view`: rows to complete, or to take conditions from.
    The network is opened last. Raises UserError.
    """
    num = num_samples(options.num, request, sampler, options.noise)
    conditions = sample_conditions(sampler, num, view, inputs, request)
    sampler = inputs.decoding(sampler)
    facts: dict[str, Any] = {}
    if view is not None and conditions.rows is not None:
        fields = experiment.batch_fields()
        chosen = num_selected_rows(sampler, view, fields)
        for remark in _row_remarks(options.num, conditions.num, chosen, view.origin):
            warn(remark)
        note = sampler.note(conditions.rows)
        if note:
            warn(f"{note}.")
        facts["divisors"] = _divisors(view, fields)
    network = open_network()
    device = next(network.parameters()).device
    seed = experiment.seed if options.seed is None else options.seed
    generator = torch.Generator(device).manual_seed(derived_seed(seed, "samples"))
    given = (
        conditions.tensors,
        conditions.num,
        generator,
        options.batch,
        options.trajectory,
        options.noise,
    )
    if options.compile:
        for variable, value in home.cache_variables().items():
            os.environ.setdefault(variable, value)
    started = perf_counter()
    try:
        with fast_passes(network, device, options.compile):
            drawn = draw_reported(progress, sampler, network, *given)
    except ValueError as error:
        if options.noise is None:
            raise
        raise UserError(str(error)) from error
    seconds = perf_counter() - started
    name = folder_name(
        step, experiment.to_dict()["sampling"], options.data, request, seed, options.noise
    )
    if options.ema is not None:
        name += f"-ema{options.ema}".replace("=", "")
    if options.compile:
        name += "-compiled"
    origin = {"run": owner, "step": str(step)}
    if options.start is not None:
        origin["start"] = options.start.name
    threads = computing_threads(device)
    place = folder / "samples" / name
    return SampleSet(drawn, sampler, step, origin, place, conditions.rows, facts, seconds, threads)


def _row_remarks(requested: int | None, num: int, chosen: int | None, origin: str) -> Iterator[str]:
    """Say where `num` completed rows are fewer than were requested, or than the `chosen` ones that
    `sampling` selects (None: it selects none).
    """
    expected = requested
    if not expected:
        expected = DEFAULT_NUM_SAMPLES if chosen is None else num
    if num < expected:
        yield f"--num {expected}: {origin} has {num} rows to complete; all of them are drawn."
    elif chosen is not None and num < chosen:
        completed = f"{num} of {chosen:,} rows to complete in {origin}"
        yield f"--num {requested}: {completed}; leave --num out for all."


def _divisors(view: View, fields: Sequence[BatchField]) -> dict[str, dict[str, float]]:
    """Divisors of a view's values by name of the entry, by column that has any."""
    found = {}
    for field in fields:
        column = view.columns[field.name]
        if column.divisors:
            names = column.names or map(str, range(len(column.divisors)))
            found[field.name] = dict(zip(names, column.divisors, strict=True))
    return found


@contextmanager
def fast_passes(network: nn.Module, device: torch.device, is_compiled: bool) -> Iterator[None]:
    """Keep memory from pass to pass on a CPU inside, and compile the network's blocks where that is
    asked for.
    """
    with ExitStack() as held:
        if device.type == "cpu":
            held.enter_context(kept_memory())
        if is_compiled:
            # imports torch's compiler: a second
            from ditlab.engine.compilation import compiled_blocks

            held.enter_context(compiled_blocks(network, device))
        yield


def sample_request(options: SampleOptions, sampler: Any) -> SampleRequest:
    """The request that `options` describe. Raises UserError for one that the family does not take,
    or is unreadable.
    """
    _check_taken(options, sampler)
    if options.strength is not None and options.start is None:
        raise UserError(
            f"--strength {options.strength:g} needs a picture to start from; name one with --start."
        )
    size = None
    if options.size is not None:
        size = _height_and_width(options.size)
    prompts = [Prompt(text) for text in options.prompts]
    if options.prompt_file:
        prompts += map(Prompt, prompt_lines(options.prompt_file))
    prompts += [Prompt(text, position) for position, text in options.placed]
    label = None
    if options.label is not None:
        label = _class_of_export(options.label)
    request = SampleRequest(label, prompts, options.negative_prompt, size=size)
    if sampler.draws_per_prompt and options.seed is not None:
        request = replace(request, seed=options.seed)
    if options.start:
        strength = STRENGTH if options.strength is None else options.strength
        start = start_image(options.start, size or sampler.size)
        request = replace(request, start=start, strength=strength)
    return request


def _height_and_width(text: str) -> tuple[int, int]:
    """Read `--size`: `256x192`, or one number for both sides. Raises UserError for other texts."""
    sides = re.fullmatch(r"(\d{1,4})(?:x(\d{1,4}))?", text)
    if sides is None:
        raise UserError(
            f"--size {text}: write height x width in pixels (at most 9999), such as 256x192, or "
            "one number."
        )
    return int(sides[1]), int(sides[2] or sides[1])


def _class_of_export(label: int | str) -> int:
    """Return the number of a class. Raises UserError for a name, which an export does not know."""
    if isinstance(label, str) and not NUMBER.fullmatch(label):
        raise UserError(
            f"--label {label}: an export knows no names of classes; give the class's number."
        )
    return int(label)


def num_samples(
    num: int | None, request: SampleRequest, sampler: Any, noise: Tensor | None = None
) -> int | None:
    """The number of samples to draw: `num` of each prompt, where each has samples of its own;
    without `num`, as many as there is noise for."""
    if num is None and noise is not None:
        return len(noise)
    if sampler.draws_per_prompt and request.prompts:
        return (num or SAMPLES_PER_PROMPT) * len(request.prompts)
    return num


def folder_name(
    step: int,
    sampling: Mapping[str, Any],
    choice: str | None,
    request: SampleRequest,
    seed: int,
    noise: Any = None,
) -> str:
    """Folder name such as `step400-euler-50-1.0-seed0`: everything that the samples depend on; long
    values, paths among them, are cut to their ends."""
    parts = [f"step{step}", *flatten(sampling).values()]
    if choice:
        parts.append(choice)
    if request.label is not None:
        parts.append(f"label{request.label}")
    if request.prompts:
        parts.append("prompt" + _digest(repr(list(request.prompts)).encode()))
    if request.negative_prompt is not None:
        parts.append("negative" + _digest(repr(request.negative_prompt).encode()))
    if request.size is not None:
        parts.append("{}x{}".format(*request.size))
    if request.start is not None:
        parts += ["start" + _digest(request.start.numpy().tobytes()), f"{request.strength:g}"]
    if noise is not None:
        parts.append("noise" + _digest(noise.detach().double().cpu().numpy().tobytes()))
    # a requested seed is the first sample's own; the run's gives every sample one
    parts.append(f"seed{seed}" if request.seed is None else f"first{request.seed}")
    return "-".join(re.sub(r"[^\w.+-]+", "_", part)[-40:] for part in parts)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _check_taken(options: SampleOptions, sampler: Any) -> None:
    """Raise UserError for an option that this sampler does not take; the sampler refuses the others
    itself.
    """
    if options.noise is not None:
        if not isinstance(options.noise, Tensor) or options.noise.ndim == 0:
            raise UserError(
                "noise must be a torch.Tensor, its first axis that of samples: torch.randn(4, "
                "1, 8, 8)."
            )
        if "noise" not in signature(sampler.sample).parameters:
            raise UserError(
                "noise was given, and this run's family takes none (its sampler); leave it out."
            )
    refused: dict[str, Any] = {}
    if not sampler.draws_per_prompt:
        if len(options.prompts) > 1:
            raise UserError(
                f"--prompt was given {len(options.prompts)} times: this run's family takes "
                "one; give one."
            )
        refused = {"--prompts": options.prompt_file, "--negative-prompt": options.negative_prompt}
    if not isinstance(sampler, PicturingSampler):
        refused |= {"--size": options.size, "--start": options.start}
    for option, value in refused.items():
        if value is not None:
            raise UserError(f"{option} {value}: this run's family takes no {option}; leave it out.")


def prompt_lines(path: Path) -> list[str]:
    """Non-empty lines of a text file. Raises UserError where there are none, and for a file that is
    no text.
    """
    try:
        text = read_plain(path, PROMPTS_BYTES, follow=True).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--prompts {path} cannot be read ({first_line(error)}); name a UTF-8 file with a "
            "prompt in every line."
        ) from error
    lines = list(filter(None, map(str.strip, text.split("\n"))))
    if not lines:
        raise UserError(f"--prompts {path} holds no prompt; write one in every line.")
    return lines


def class_number(name: str, names: Sequence[str]) -> int:
    """Return the number of a class by its name, or by its number in digits. Raises UserError for an
    unknown one.
    """
    if name in names:
        return names.index(name)
    if NUMBER.fullmatch(name):
        return int(name)
    if not names:
        raise UserError(
            f"--label {name}: this run's data have no names of classes; give the class's number."
        )
    listed = ", ".join(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        listed += f" and {len(names) - _MOST_NAMES:,} more"
    raise UserError(f"--label {name} is no class of this run's data; their names are {listed}.")


def start_image(path: Path, size: tuple[int, int]) -> Tensor:
    """Read a picture as (3, height, width) float32 in [-1, 1], fitted to `size` around its centre.
    Raises UserError.
    """
    height, width = size
    if path.exists() and not path.is_file():  # a named pipe would be waited for
        raise UserError(
            f"--start {path} cannot be read (it is no plain file); name another picture."
        )
    try:
        with open_picture(path) as picture:
            fitted = ImageOps.fit(picture.read(), (width, height), Image.Resampling.LANCZOS)
    except TooManyPixels as error:
        raise UserError(
            f"--start {path} has {error}, and at most {MAX_PIXELS:,} are read; scale it down."
        ) from error
    except BROKEN as error:
        formats = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        reason = getattr(error, "strerror", None) or f"no picture in {formats}"
        raise UserError(
            f"--start {path} cannot be read ({reason}); name another picture."
        ) from error
    pixels = torch.from_numpy(np.asarray(fitted, dtype=np.float32).transpose(2, 0, 1).copy())
    return pixels / 127.5 - 1


@dataclass(frozen=True)
class SampleSet:
    """Samples drawn from the weights of a run or an export, in the host's memory. Notebooks show
    them as a picture.
    """

    samples: Samples
    sampler: Any
    """The family's sampler."""
    step: int
    """Optimiser step of the weights."""
    origin: Mapping[str, str]
    """Where the weights come from, by name: run, step."""
    folder: Path
    """Default folder of `save`."""
    rows: RealRows | None
    """The rows that were completed; None where samples were drawn from noise alone."""
    table_facts: Mapping[str, Any]
    """Metadata of the table of completed rows."""
    seconds: float
    """Duration of the drawing."""
    threads: int | None
    """CPU threads that drew them; None on a GPU."""

    @property
    def values(self) -> Tensor:
        """The samples, (num, *sample shape) in the model's own range: images (num, channels,
        height, width) in [-1, 1], text (num, length) token ids."""
        return self.samples.values

    @property
    def conditions(self) -> dict[str, Tensor]:
        """Conditions of each sample by name, (num, ...) each; empty for unconditional
        samples.
        """
        return self.samples.conditions

    @cached_property
    def num_not_finite(self) -> int:
        """Samples with a value that is NaN or infinite: pictures show such pixels in magenta."""
        return num_not_finite(self.values)

    @property
    def trajectory(self) -> Tensor | None:
        """(frames, num, *sample shape), the first frame pure noise; None unless requested."""
        return self.samples.trajectory

    @property
    def numbers(self) -> dict[str, Tensor]:
        """Content of `samples.safetensors`: values, conditions, and the trajectory if there is one,
        in host memory.
        """
        tensors = {"values": self.values, **self.conditions}
        if self.trajectory is not None:
            tensors["trajectory"] = self.trajectory
        return {name: value.cpu().contiguous() for name, value in tensors.items()}

    @cached_property
    def plot(self) -> Plot:
        """All samples in one picture, as the family shows them."""
        return Plot(self.sampler.show(self.samples))

    @property
    def animation(self) -> Plot:
        """The samples over the solver steps, in at most 26 frames. Raises ValueError without a
        trajectory.
        """
        frames = self.trajectory
        if frames is None:
            raise ValueError("these samples have no trajectory; draw them with trajectory=True.")
        picked = sorted({round(i * (len(frames) - 1) / 25) for i in range(26)})
        shown = [self.sampler.show(Samples(frames[index], self.conditions)) for index in picked]
        last = shown[-1]
        return Plot(replace(last, frames=[*shown, *[last] * 5]))

    @property
    def images(self) -> list[Image.Image]:
        """One image a sample; empty for families that draw no images."""
        if isinstance(self.sampler, PicturingSampler):
            return [
                Image.fromarray(picture.pixels) for picture in self.sampler.pictures(self.samples)
            ]
        found = []
        for panel in self.plot.figure.panels:
            if isinstance(panel, ImageGrid):
                found += _images(panel)
        return found

    @property
    def texts(self) -> list[str]:
        """One text a sample; empty for families that write no text."""
        texts = (
            panel.passages for panel in self.plot.figure.panels if isinstance(panel, TextPanel)
        )
        return list(next(texts, ()))  # another panel shows how the first one came to be

    @property
    def table(self) -> dict[str, np.ndarray]:
        """The completed rows as columns of equal length; empty where no rows were completed."""
        if self.rows is None:
            return {}
        found: dict[str, np.ndarray] = self.sampler.table(self.samples, self.rows)
        return found

    def save(self, folder: str | Path | None = None) -> list[Path]:
        """Write picture, numbers, and the family's other files into `folder`; return them, the
        picture first. Where its name ends in .npz, write the images alone into that file, as ADM
        does (`arr_0`, uint8 NHWC).

        `samples.safetensors` holds numbers and conditions, `samples.txt` text, `trajectory.gif` the
        solver steps; families that draw pictures get an image file for each sample, with `origin`
        in it. Raises UserError where the disk refuses.
        """
        if folder is not None and Path(folder).suffix == ".npz":
            return [self._save_images(Path(folder))]
        # imports matplotlib: not before samples are drawn
        from ditlab.reports.rendering.render import save_figure

        place = output_folder(self.folder if folder is None else Path(folder))
        drawn = self.samples
        with writing(place):
            numbers = place / "samples.safetensors"
            figure = self.plot.figure
            save_file(self.numbers, numbers)
            files = [save_figure(figure, place / "samples.png"), numbers]
            files += filter(None, [save_text(figure, place / "samples.txt")])
            if isinstance(self.sampler, PicturingSampler):
                files += save_pictures(self.sampler.pictures(drawn), self.origin, place)
            if drawn.trajectory is not None:
                files.append(save_figure(self.animation.figure, place / "trajectory.gif"))
            if self.rows is not None:
                files.append(save_table(self.table, place / "imputed.parquet", self.table_facts))
        return files

    def _save_images(self, path: Path) -> Path:
        values = self.values
        if values.ndim != 4 or values.shape[1] not in (1, 3):
            raise UserError(
                f"--out {path}: samples of shape {tuple(values.shape[1:])} are no images; name "
                "a folder."
            )
        if self.num_not_finite:
            raise UserError(
                f"--out {path}: {self.num_not_finite:,} of {len(self):,} samples hold values that "
                "are not finite (NaN), which its bytes cannot hold; take weights of an earlier "
                "step, or name a folder, whose samples.safetensors holds them as they are."
            )
        with writing(path):
            return write_whole(path, npz_of_images(values))

    def __len__(self) -> int:
        return len(self.values)

    def _repr_png_(self) -> tuple[bytes, dict[str, str]]:
        return self.plot._repr_png_()


def _images(grid: ImageGrid) -> list[Image.Image]:
    return [Image.fromarray(to_pixels(image)) for image in grid.images]


def save_pictures(
    pictures: Sequence[Picture], origin: Mapping[str, str], folder: Path
) -> Iterator[Path]:
    """Write `000.png`, ..., each with `origin` and its settings as texts `ditlab.KEY`. Raises
    OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digits = max(3, len(str(len(pictures) - 1)))
    for number, each in enumerate(pictures):
        texts = PngInfo()
        for name, text in {**origin, **each.settings}.items():
            texts.add_itxt(f"ditlab.{name}", text)
        content = BytesIO()
        Image.fromarray(each.pixels).save(content, format="PNG", pnginfo=texts)
        yield write_whole(folder / f"{number:0{digits}d}.png", content.getvalue())


@dataclass(frozen=True)
class ExportedModel:
    """A network ready to use, from a folder that `ditlab export` wrote."""

    folder: Path
    spec: Experiment
    """The experiment that trained the network."""
    network: nn.Module
    """The network with the exported weights, in evaluation mode."""
    step: int
    """Optimiser step of the weights."""

    @property
    def text(self) -> TextCodec | None:
        """The codec of the export's tokeniser; None for a model of other data than text."""
        file = self.folder / TOKENIZER_NAME
        if file.exists():
            return text_codec(open_tokenizer(file))
        return None

    @cached_property
    def sampler(self) -> Sampler:
        """The family's sampler (`ditlab_models.contract.Sampler`) under the spec's sampling
        settings.
        """
        return self._sampler(self.spec)

    def sample(self, num: int | None = None, **keywords: Unpack[SampleKeywords]) -> SampleSet:
        """Draw `num` samples from noise (default: 64, or 4 of each prompt).

        Raises UserError for options that do not fit, and for a model that completes rows of data or
        takes conditions from them where no prompts are given: an export has no data.
        """
        options = SampleOptions.of(num, keywords)
        changed = assign(self.spec.to_dict(), options.changes(), class_for)
        spec = build_experiment(changed, str(self.folder / "spec.yaml"))
        sampler = self._sampler(spec)
        request = sample_request(options, sampler)
        remedy = ""
        if sampler.takes_rows == "completed":
            remedy = "use the run"
        elif sampler.takes_rows == "conditions" and not request.prompts:
            remedy = "give prompts, or use the run"
        if remedy:
            raise UserError(
                f"{self.folder}: this model samples from rows of data, and an export has none; "
                f"{remedy}."
            )
        inputs = ModelInputs.from_experiment(spec, (), next(self.network.parameters()).device)
        with computing_beside_others(_log.info):
            return draw_set(
                options,
                spec,
                sampler,
                request,
                inputs,
                lambda: self.network,
                self.step,
                self.spec.name,
                self.folder,
                Home.from_environment(),
            )

    def _sampler(self, spec: Experiment) -> Sampler:
        with building():
            return spec.family.build_sampler(spec.sampling, spec.model, spec.objective, self.text)


def open_export(folder: Path, device: torch.device, warn: Callable[[str], None]) -> ExportedModel:
    """Load an export onto `device`; `warn` gets files that were changed. Raises UserError for
    damage, or no export.
    """
    for name in (SPEC_NAME, WEIGHTS_NAME):
        if not (folder / name).exists():
            raise UserError(
                f"{folder} holds no {name}, so it is no export; write one with `ditlab export`."
            )
    facts = check_export(folder, warn)
    return ExportedModel(folder, *load_checked(folder, device), facts.step)
