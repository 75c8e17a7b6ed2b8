"""Exports that need no DiTLab: a folder for torch, and one for diffusers, each with its code and a
model card.

The same checkpoint gives the same bytes. diffusers itself is not needed to write its folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from ditlab.analysis.averages import ExportSource
from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.errors import UserError, cannot_write
from ditlab.spec.plugins import plugin_packages
from ditlab.spec.yaml_text import dump_yaml
from ditlab.storage.files import write_durably
from ditlab.tracking.history import held_out_text
from ditlab.tracking.journal import read_content, recorded_dataset
from ditlab.training.export import SPEC_NAME, portable_spec, write_export, write_weights
from ditlab_addons.interop.self_contained import code
from ditlab_models.families import find_family

SelfContainedFormat = Literal["torch", "diffusers"]
CARD = "README.md"
CONFIG = "config.json"
VERSION = {"_diffusers_version": "0.38.0"}
"""Oldest version that the folders are for."""
DIFFUSERS_WEIGHTS = "diffusion_pytorch_model.safetensors"
MEASURED = ("eval/", "held_out/", "quality/", "assessed/")
"""Beginnings of the names of metrics in a card."""
TORCH_USE = """\
from model import load  # the file of this folder; it needs torch, safetensors and numpy

# On the CPU; load(device="cuda"), sample(..., noise=, label=, steps=) and so on.
samples = load().sample(4)
print(samples.values.shape)"""
DIFFUSERS_USE = """\
from diffusers import DiffusionPipeline  # diffusers >= 0.38

pipeline = DiffusionPipeline.from_pretrained("FOLDER or OWNER/NAME", trust_remote_code=True)
pipeline(4, output_type="pt").images  # or pil, np; noise=, label=, steps= and so on"""


@dataclass(frozen=True)
class CardFacts:
    """Facts of a run that a model card states, beside its spec."""

    run_id: str
    name: str
    averaged: str
    """Phrase on the weights: averaged, or as they are trained."""
    dataset: Mapping[str, Any]
    """Record of the data; {} where there is none."""
    metrics: Mapping[str, tuple[int, float]]
    """Step and last value of each measured metric."""
    options: str = ""
    """Options of `ditlab export` that chose the weights, such as `--raw`."""


def _write_saved(form: SelfContainedFormat, source: ExportSource, folder: Path) -> list[Path]:
    saved = source.saved
    return write_self_contained(
        form,
        saved.checkpoint.manifest,
        source.tensors,
        folder,
        card_facts(source),
        saved.folder.tokenizer,
    )


write_torch = partial(_write_saved, "torch")
"""Write a folder for torch. Raises UserError as `write_self_contained` does."""
write_diffusers = partial(_write_saved, "diffusers")
"""Write a folder for diffusers. Raises UserError as `write_self_contained` does."""


def card_facts(source: ExportSource) -> CardFacts:
    """Return what a model card states of a run."""
    saved = source.saved
    metrics = dict[str, tuple[int, float]]()
    with suppress(OSError):
        content = read_content(saved.folder.journal)
        for name, points in content.metrics.items():
            if name.startswith(MEASURED):
                metrics[name] = points.steps[-1], points.values[-1]
    dataset = recorded_dataset(saved.folder.journal)
    return CardFacts(
        saved.folder.run_id, saved.record.name, source.averaged, dataset, metrics, source.options
    )


def write_self_contained(
    form: SelfContainedFormat,
    trained: CheckpointManifest,
    tensors: Mapping[str, Tensor],
    folder: Path,
    facts: CardFacts,
    tokenizer: Path | None,
) -> list[Path]:
    """Write a network's weights with code that samples from them; return the files.

    Raises UserError for a folder with content, for networks of other packages, for a family that
    has no such export, and where the disk refuses.
    """
    spec = portable_spec(trained.spec)
    family = spec["model"]["family"]
    packages = plugin_packages(spec)
    if packages:
        raise UserError(
            f"--format {form} carries DiTLab's own code, and this run needs "
            f"{', '.join(packages)}; leave --format out."
        )
    known = find_family(family)
    assert known is not None, f"there is no family {family}"
    fields = known.model.model_validate(spec["model"]).batch_fields()
    if form == "diffusers" and all(field.name != "image" for field in fields):
        raise UserError(
            f"--format diffusers draws images, and model.family={family} draws none; take "
            "--format torch."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--out {folder} is there already; remove it, or name another folder.")
    objective = known.objective_of(spec["objective"])
    settings = code.TrainedSettings(
        known,
        known.model.model_validate(spec["model"]),
        objective.model_validate(spec["objective"]),
        known.sampling_of(objective).model_validate(spec["sampling"]),
        spec["seed"],
        facts.dataset.get("sampled", ()),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if form == "torch":
            files = write_export(trained, tensors, folder, tokenizer)
            files.append(_write(folder / "model.py", code.torch_module(settings)))
        else:
            files = _write_diffusers(folder, trained, tensors, settings)
        return [*files, _write(folder / CARD, _card(form, trained, spec, tensors, facts))]
    except OSError as error:
        raise cannot_write(folder, error, "name another folder") from error


def _write_diffusers(
    folder: Path,
    trained: CheckpointManifest,
    tensors: Mapping[str, Tensor],
    settings: code.TrainedSettings,
) -> list[Path]:
    """Write a pipeline whose network is DiTLab's own code, in `network`."""
    network = folder / "network"
    family = settings.family.name
    network.mkdir()
    spec = _write(network / SPEC_NAME, dump_yaml(portable_spec(trained.spec)))
    weights = network / DIFFUSERS_WEIGHTS
    named = {f"network.{name}": each for name, each in tensors.items()}
    write_weights(
        weights, named, {"format": "pt", "family": family, "step": str(trained.step)}, [spec]
    )
    index = {
        "_class_name": ["pipeline", "TrainedPipeline"],
        "network": ["modeling", "TrainedNetwork"],
    }
    return [
        weights,
        spec,
        _write(network / CONFIG, _json({"_class_name": "TrainedNetwork", **VERSION})),
        _write(network / "modeling.py", code.diffusers_network(settings)),
        _write(folder / "pipeline.py", code.pipeline()),
        _write(folder / "model_index.json", _json({**VERSION, **index})),
    ]


def _card(
    form: SelfContainedFormat,
    trained: CheckpointManifest,
    spec: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    facts: CardFacts,
) -> str:
    """Return the model card: what it is, how to use it, data, metrics with their protocol, spec,
    commands.
    """
    family = spec["model"]["family"]
    dataset = facts.dataset
    count = sum(each.numel() for each in tensors.values())
    rows = [
        f"| `{name}` | {value:.6g} | {step:,} |"
        for name, (step, value) in sorted(facts.metrics.items())
    ]
    data = ["not recorded"]
    if dataset:
        data = [f"- name: {dataset['name']}", f"- fingerprint: `{dataset['fingerprint']}`"]
    metrics = ["None was measured."]
    if rows:
        metrics = ["| metric | value | step |", "|---|---|---|", *rows]
    counts = dataset.get("counts", {})
    data += [f"- {name}: {number:,}" for name, number in sorted(counts.items())]
    for column, names in sorted(dataset.get("classes", {}).items()):
        numbered = ", ".join(f"{number} {name}" for number, name in enumerate(names))
        data.append(f"- names of `{column}`: {numbered}")
    library = {"torch": "pytorch", "diffusers": "diffusers"}[form]
    lines = [
        "---",
        f"library_name: {library}",
        "license: other",
        "license_name: not-chosen-yet",
        f"tags: [diffusion, {family}, ditlab]",
        "---",
        "",
        f"# {facts.name}",
        "",
        (
            f"Family `{family}`, {count:,} numbers, step {trained.step:,} of run "
            f"{facts.run_id}: {facts.averaged}."
        ),
        "",
        (
            "**Licence: a placeholder.** Nobody has chosen one yet; set `license` above before "
            "you publish this."
        ),
        "",
        "## Use",
        "",
        "```python",
        TORCH_USE if form == "torch" else DIFFUSERS_USE,
        "```",
        "",
        "## Data",
        "",
        *data,
        "",
        "## Metrics",
        "",
        *metrics,
        "",
        (
            "`eval/...` are means over held-out samples in training, of the averaged weights "
            "where there are any; `held_out/...`, `quality/...` and `assessed/...` were added "
            "by `ditlab evaluate`. Held-out share and draws: the sections `data`, `evaluation` "
            "and `objective` of the spec. "
            f"{held_out_text(facts.metrics, counts, spec['evaluation']['limit'])}"
        ).rstrip(),
        "",
        "## Made by",
        "",
        "```",
        "ditlab train spec.yaml      # the spec below",
        f"ditlab export {facts.run_id} --format {form} --out FOLDER {facts.options}".rstrip(),
        "```",
        "",
        "## Spec",
        "",
        "```yaml",
        dump_yaml(dict(spec)).rstrip("\n"),
        "```",
        "",
    ]
    return "\n".join(lines)


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def _write(path: Path, text: str) -> Path:
    return write_durably(path, text.encode())
