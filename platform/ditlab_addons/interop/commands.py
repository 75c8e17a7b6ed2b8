"""`ditlab weights`: published weights, and how a run begins from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import TypedDict

from ditlab.cli import options, output
from ditlab.home import Home

if TYPE_CHECKING:
    from ditlab.weights.published import PublishedWeights
    from ditlab.weights.rules import Fit

_AUTO = "auto"
"""Set of tensors that the rules choose."""


@dataclass(frozen=True)
class WeightsDescription:
    """Weights, the network that their shapes give, and how they fill it."""

    weights: PublishedWeights
    place: str
    """File, folder or place on the hub, as it was named."""
    model: Mapping[str, Any]
    """Section `model` of the spec of their network."""
    fit: Fit
    num_network: int
    """Parameters of that network."""
    wanted: str
    """Set of tensors that was asked for."""

    @property
    def num_file(self) -> int:
        """Numbers in the files."""
        return sum(each.numel() for each in self.weights.tensors.values())

    @property
    def command(self) -> list[str]:
        """Arguments of `ditlab train` that begin a run from the weights."""
        from ditlab.weights.own_export import SPEC

        files = self.weights.files
        spec = "SPEC"
        if self.weights.format.name == "export":
            spec = str(files.folder / SPEC)
        return [spec, *self._settings]

    @property
    def init(self) -> dict[str, str]:
        """The section `model.init` of a run from these weights."""
        init = {"from": self.place}
        if self.wanted != _AUTO:
            init["weights"] = self.wanted
        return init

    @property
    def _settings(self) -> list[str]:
        settings = []
        for name, value in self.init.items():
            settings += ["--set", f"model.init.{name}={value}"]
        return settings

    def to_dict(self) -> dict[str, Any]:
        """The description in JSON's types, for `--json`."""
        weights = self.weights
        return {
            "format": weights.format.name,
            "family": self.model["family"],
            "choices": [each.to_dict() for each in weights.choices],
            "model": {**self.model, "init": self.init},
            "num_file": self.num_file,
            "num_network": self.num_network,
            "fits": not self.fit.problems,
            "num_fitting": len(self.fit.values),
            "problems": self.fit.problems,
            "kept": self.fit.kept,
            "sha256": weights.files.sha256,
            "files": weights.files.hashes,
            "revision": weights.files.revision,
            "notes": self.notes,
            "command": ["train", *self.command],
        }

    @property
    def notes(self) -> list[str]:
        """Sentences on what was taken of the files, what is assumed, and what the files lack."""
        kept = self.fit.kept
        notes = [f"taken: {choice}." for choice in self.weights.choices]
        notes += self.weights.format.notes(self.model, self.weights.files)
        if self.fit.rounded:
            notes.append(
                f"{len(self.fit.rounded)} tensors have float64 numbers that float32 rounds."
            )
        if kept:
            notes.append(
                f"{len(kept)} tensors that the format lacks stay as the seed gives them: "
                f"{', '.join(kept[:5])}."
            )
        return notes

    def lines(self) -> list[str]:
        """Return the lines above the spec."""
        weights = self.weights
        num = len(self.weights.tensors)
        found = [
            f"format   {weights.format.name}: {weights.format.about}",
            f"family   {self.model['family']}",
            (
                f"numbers  {self.num_file:,} in {num} tensors of the file; the network has "
                f"{self.num_network:,} parameters"
            ),
            f"fits     {len(self.fit.values)} tensors of the network",
            *(f"sha256   {digest}  {name}" for name, digest in weights.files.hashes.items()),
        ]
        if len(weights.files.hashes) > 1:
            found.append(f"sha256   {weights.files.sha256}  all of them (model.init.sha256)")
        if weights.files.revision:
            found.append(f"commit   {weights.files.revision}")
        refusal = weights.refusal(self.fit)
        if refusal:
            found.append(f"{refusal}; set model.init.strict to false to load what fits.")
        return [*found, *(f"{note[0].upper()}{note[1:]}" for note in self.notes)]


def inspect_weights(place: str, home: Home, format: str, wanted: str = _AUTO) -> WeightsDescription:
    """Describe the weights at a file, a folder or hf://OWNER/NAME@REVISION. Raises UserError for
    weights that cannot be read, have no known format, or are of a network that no spec describes.
    """
    from ditlab.weights.published import PublishedWeights, outline

    weights = PublishedWeights.open(place, "PATH", home, format, wanted=wanted)
    model = weights.model()
    network = outline(model)
    count = sum(each.numel() for each in network.parameters())
    given = place if "://" in place else str(Path(place).absolute())
    return WeightsDescription(weights, given, model, weights.fit(network), count, wanted)


class SelectionOutput(TypedDict):
    taken: str
    skipped: list[str]
    reason: str
    option: str


class WeightsOutput(TypedDict):
    format: str
    family: str
    choices: list[SelectionOutput]
    model: dict[str, Any]
    num_file: int
    num_network: int
    fits: bool
    num_fitting: int
    problems: list[str]
    kept: list[str]
    sha256: str
    files: dict[str, str]
    revision: str | None
    notes: list[str]
    command: list[str]


RESULTS = {
    "weights inspect": WeightsOutput,
}
"""Type of the object of each command."""


@click.group()
def weights() -> None:
    """Tell the format and spec of published weights."""


@weights.command()
@click.argument("path", metavar="PATH")
@click.option(
    "--format",
    "format_name",
    default="auto",
    metavar="NAME",
    help="Format of the weights [found from their names].",
)
@click.option(
    "--weights",
    "wanted",
    default=_AUTO,
    metavar="NAME",
    help="Tensors of a file that holds several sets of them, by their keys [the moving average].",
)
@options.as_json
def inspect(path: str, format_name: str, wanted: str, as_json: bool) -> int:
    """Tell what weights PATH holds: format, family, spec, parameters, what fits our network,
    hashes.

    PATH is a file (.safetensors; .pt, .pth, .bin and .ckpt are read where they hold tensors alone),
    a folder with one, with shards and their index, or with an export of DiTLab, or
    hf://OWNER/NAME[@REVISION][/PATH]. The printed section `model` begins a spec that trains from
    them. Exit code 1 where tensors do not fit.
    """
    found = inspect_weights(path, Home.from_environment(), format_name, wanted)
    for line in found.lines():
        output.print_line(line, as_json)
    output.print_yaml({"model": {**found.model, "init": found.init}}, as_json)
    output.emit(found.to_dict(), as_json)
    output.hint(as_json, "train", *found.command)
    return 1 if found.fit.problems else 0
