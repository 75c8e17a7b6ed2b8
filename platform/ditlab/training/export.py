"""Export of a run's weights as safetensors, with the spec that rebuilds the network.

The weights file has the same bytes for the same weights, and is checked when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.checkpoints.shard import CHUNK, header_entries, raw_bytes, with_length
from ditlab.checkpoints.store import open_checkpoint
from ditlab.data.text.tokenizer import TOKENIZER_BYTES, TOKENIZER_NAME
from ditlab.errors import UserError, cannot_write, first_line
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment
from ditlab.spec.plugins import check_installed, plugin_packages
from ditlab.spec.yaml_text import dump_yaml
from ditlab.storage.files import replacing, write_durably
from ditlab.storage.plain_files import MIB, open_regular_file, parse_json, read_plain
from ditlab.weights.class_names import CLASSES_NAME, class_lines

WEIGHTS_NAME = "weights.safetensors"
SPEC_NAME = "spec.yaml"
MAX_HEADER = 100 << 20
"""Most bytes of a header, as in the library."""
MAX_TEXT_FILE = 256 * MIB
"""Most bytes of a file beside the weights: the largest published tokenisers have about 40 MB."""
METADATA = "__metadata__"
HASHES = "sha256"
CONTENT = "content"


def export_weights(
    checkpoint: str | Path,
    folder: Path,
    averaged: bool = True,
    tokenizer: Path | None = None,
    classes: Sequence[str] = (),
) -> list[Path]:
    """Write `weights.safetensors` (float32, averaged weights where there are any) and `spec.yaml`;
    return both.

    `checkpoint` is the path or URI of one; `tokenizer`, where that file exists, is copied beside
    them, and names of `classes` are written there. The same weights and spec give the same bytes.
    Raises UserError where the checkpoint is not whole, or the disk refuses.
    """
    with open_checkpoint(checkpoint) as reader:
        weights = reader.weights(averaged)
        return write_export(reader.manifest, weights, folder, tokenizer, classes=classes)


def write_export(
    trained: CheckpointManifest,
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
    tokenizer: Path | None,
    facts: Mapping[str, str] = MappingProxyType({}),
    classes: Sequence[str] = (),
) -> list[Path]:
    """Write an export of the network's weights at a checkpoint; `facts` join the metadata of the
    weights, and `classes` are the names of its label table's.

    Raises UserError where the disk refuses.
    """
    weights = folder / WEIGHTS_NAME
    spec = folder / SPEC_NAME
    metadata = {
        "format": "pt",
        "family": str(trained.spec["model"]["family"]),
        "step": str(trained.step),
        **facts,
    }
    packages = plugin_packages(trained.spec)
    if packages:
        metadata["plugins"] = json.dumps(packages, sort_keys=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        beside = [write_durably(spec, dump_yaml(portable_spec(trained.spec)).encode())]
        if tokenizer and tokenizer.exists():
            beside.append(
                write_durably(folder / TOKENIZER_NAME, read_plain(tokenizer, TOKENIZER_BYTES))
            )
        write_weights(weights, tensors, metadata, beside)
        lines = class_lines(classes)
        if lines:  # not hashed: the weights are whole without it
            beside.append(write_durably(folder / CLASSES_NAME, lines))
    except OSError as error:
        raise cannot_write(folder, error, "name another folder") from error
    return [weights, *beside]


def portable_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's spec without what belongs to its machine: tracking address, checkpoint folder,
    weights to begin from.
    """
    own = {"tracking": {"uri": None}, "checkpoint": {"storage": None}, "model": {"init": None}}
    return {**spec, **{name: spec[name] | fields for name, fields in own.items()}}


def load_network(
    experiment: Experiment, weights: Mapping[str, torch.Tensor], device: torch.device
) -> nn.Module:
    """Build an experiment's network in evaluation mode, from weights by name."""
    network: Any = experiment.family.build_network(experiment.model)
    network.load_state_dict(dict(weights))
    built: nn.Module = network.to(device).eval()
    return built


def check_export(folder: Path, warn: Callable[[str], None]) -> ExportFacts:
    """Check the hashes of the files that `export_weights` wrote.

    `warn` is called for a spec.yaml that was changed since, and for weights that DiTLab did not
    write. Raises UserError for damaged or altered files, and where a package that the network needs
    is not installed here.
    """
    weights = folder / WEIGHTS_NAME
    spec = folder / SPEC_NAME
    facts = read_facts(weights)
    for name in dict.fromkeys((SPEC_NAME, *facts.hashes)):
        with _reading(folder / name):
            found = _file_hash(folder / name)
        if found != facts.hashes.get(name, found):
            if name != SPEC_NAME:
                raise UserError(
                    f"{folder / name} was altered: its SHA-256 is not the export's; export the "
                    "run again."
                )
            warn(
                f"{spec} was changed after the export (another SHA-256); the network is built "
                "as it says now."
            )
    if not facts.hashes:
        warn(
            f"{weights} was not written by DiTLab: nothing tells whether these are the weights "
            f"of {spec}."
        )
    check_installed(facts.packages, f"the export {folder}")
    return facts


def load_checked(folder: Path, device: torch.device) -> tuple[Experiment, nn.Module]:
    """Load (experiment, network in evaluation mode) from an export whose files `check_export` has
    checked.

    Raises UserError for weights that are not the network's.
    """
    experiment = load_experiment(folder / SPEC_NAME)
    path = folder / WEIGHTS_NAME
    with _reading(path):
        open_regular_file(path, follow=True).close()
        weights = load_file(path)
    with torch.device("meta"):  # a spec.yaml that asks for a huge network costs nothing yet
        network: Any = experiment.family.build_network(experiment.model)
    try:
        network.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        problem = shorten(str(error).splitlines()[1], 400, placeholder=" ...")
        raise UserError(
            f"{path} does not fit the network of spec.yaml beside it ({problem}); undo changes "
            "of spec.yaml, or export the run again."
        ) from error
    return experiment, load_network(experiment, weights, device)


@dataclass(frozen=True)
class ExportFacts:
    """Metadata of an export's weights."""

    step: int
    """Optimiser step of the weights."""
    packages: dict[str, str]
    """Packages of the network's parts, with versions."""
    hashes: dict[str, str]
    """SHA-256 of each file beside the weights, by name; {} for weights that another program
    wrote.
    """


def write_weights(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], files: Sequence[Path]
) -> None:
    """Write tensors, metadata, and the hashes of both and of `files`. Raises OSError where the disk
    refuses.
    """
    ordered = {name: tensors[name].contiguous() for name in sorted(tensors)}
    # for their alignment
    entries = header_entries(sorted(ordered.items(), key=lambda item: -item[1].element_size()))
    hashes = {file.name: _file_hash(file) for file in files}
    content = hashlib.sha256(_header(metadata, hashes, entries))
    for name in entries:
        content.update(raw_bytes(ordered[name]))
    with replacing(path) as file:
        file.write(
            with_length(_header(metadata, {**hashes, CONTENT: content.hexdigest()}, entries))
        )
        for name in entries:
            file.write(raw_bytes(ordered[name]))


def read_facts(path: Path) -> ExportFacts:
    """Read the metadata, and hash the whole file unless another program wrote it.

    Raises UserError for a file that cannot be read, or was altered.
    """
    with _reading(path), open_regular_file(path, follow=True) as file:
        size = int.from_bytes(file.read(8), "little")
        if size > min(MAX_HEADER, os.fstat(file.fileno()).st_size):
            raise ValueError(f"its header would have {size:,} bytes")
        header = parse_json(file.read(size))
        metadata = header.pop(METADATA, {})
        if any("data_offsets" not in entry for entry in header.values()):
            raise ValueError("its header describes something else than tensors")
        if not metadata.keys() & {"family", HASHES}:
            return ExportFacts(0, {}, {})
        hashes = parse_json(metadata.pop(HASHES, "{}"))
        expected = hashes.pop(CONTENT, "")
        content = hashlib.sha256(_header(metadata, hashes, header))
        while chunk := file.read(CHUNK):
            content.update(chunk)
        if content.hexdigest() != expected:
            raise ValueError("it was altered: its SHA-256 differs from the one written with it")
        return ExportFacts(int(metadata["step"]), parse_json(metadata.get("plugins", "{}")), hashes)


def _file_hash(path: Path) -> str:
    """SHA-256 of a spec or a tokeniser, in hexadecimal digits. Raises OSError as
    `open_regular_file` does.
    """
    with open_regular_file(path, MAX_TEXT_FILE, follow=True) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise UserError for what reading an export's weights may raise."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({first_line(error)}); export the run again."
        ) from error
    except (
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        RuntimeError,
        SafetensorError,
    ) as error:
        raise UserError(
            f"{path} is damaged ({first_line(error)}); export the run again."
        ) from error


def _header(
    metadata: Mapping[str, str], hashes: Mapping[str, str], entries: Mapping[str, Any]
) -> bytes:
    header = {METADATA: {**metadata, HASHES: json.dumps(hashes, sort_keys=True)}, **entries}
    return json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
