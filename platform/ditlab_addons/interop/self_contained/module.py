"""A trained network and its sampler in one file.

It needs torch, safetensors, numpy and pydantic (a model of text perhaps tokenizers), and nothing of
DiTLab, which wrote it:

    >>> from model import load
    >>> samples = load("FOLDER").sample(4).values

`SOURCES` holds the modules of DiTLab's package `ditlab_models` that the network and its sampler
use, word for word, each line behind a bar; they are imported from this file, under a name of its
own. The bar is for tools that search a file's text for packages to install, strings too: diffusers
takes a line of a string that looks like an import for one.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType
from typing import Any

import numpy
import pydantic
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

NEEDED = (numpy, pydantic)
"""Libraries that only the code in `SOURCES` uses, imported where tools find them."""
SOURCES: dict[str, str] = {}
PACKAGE = (
    "ditlab_models_" + hashlib.sha256(json.dumps(SOURCES, sort_keys=True).encode()).hexdigest()[:16]
)
Config = Mapping[str, Any]
"""Sections `model`, `objective` and `sampling` of the run's spec, its `seed`, and the `classes` of
its data.
"""


class EmbeddedModules(MetaPathFinder, InspectLoader):
    """Importer of the modules in `SOURCES`, those of `ditlab_models`, as those of `PACKAGE`."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        known = name in SOURCES or any(each.startswith(f"{name}.") for each in SOURCES) or not name
        if package == PACKAGE and known:
            return spec_from_loader(fullname, self)
        return None

    def is_package(self, fullname: str) -> bool:
        name = fullname.partition(".")[2]
        return not name or any(each.startswith(f"{name}.") for each in SOURCES)

    def get_source(self, fullname: str) -> str:
        source = re.sub(r"^\|", "", SOURCES.get(fullname.partition(".")[2], ""), flags=re.M)
        source = re.sub(
            r"^import ditlab_models$", f"import {PACKAGE} as ditlab_models", source, flags=re.M
        )
        return re.sub(r"^(\s*)from ditlab_models\b", rf"\1from {PACKAGE}", source, flags=re.M)

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(
            self.get_source(fullname), f"<{fullname}>", "exec", dont_inherit=True
        )
        return code


def part(name: str) -> Any:
    """Import a module of `SOURCES`."""
    if not any(isinstance(each, EmbeddedModules) for each in sys.meta_path):
        sys.meta_path.insert(0, EmbeddedModules())
    return importlib.import_module(f"{PACKAGE}.{name}")


def build_network(config: Config) -> nn.Module:
    """Build the network with fresh weights."""
    family = part(f"{config['model']['family']}.family").FAMILY
    network: nn.Module = family.build_network(family.model(**config["model"]))
    return network


def build_sampler(config: Config, text: Any = None, **sampling: Any) -> Any:
    """Build the sampler; `text` is a codec (`open_text`), `sampling` fields of the section
    `sampling` that change.
    """
    family = part(f"{config['model']['family']}.family").FAMILY
    objective = family.objective_of(config["objective"])
    chosen = family.sampling_of(objective)(**{**config["sampling"], **sampling})
    return family.build_sampler(
        chosen, family.model(**config["model"]), objective(**config["objective"]), text
    )


def open_text(folder: str | Path) -> Any:
    """Return the codec of a folder's `tokenizer.json`, which needs the library tokenizers unless
    tokens are bytes; None without such a file."""
    path = Path(folder) / "tokenizer.json"
    if not path.exists():
        return None
    codec = part("contract").TextCodec
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("kind") == "bytes":
        end = bytes([content["end"]])
        return codec(
            lambda text: list(text.encode()),
            lambda ids: "<|endoftext|>".join(
                each.decode(errors="replace") for each in bytes(ids).split(end)
            ),
            content["vocabulary"],
            content["end"],
        )
    # no import statement: most models do not need it
    library = importlib.import_module("tokenizers")
    tokenizer = library.Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return codec(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
        tokenizer.get_vocab_size(),
        -1,  # no sampler reads the end token
    )


def draw(
    network: nn.Module,
    config: Config,
    num: int,
    *,
    label: int | None = None,
    prompts: Sequence[str] = (),
    seed: int | None = None,
    noise: Tensor | None = None,
    conditions: Mapping[str, Tensor] | None = None,
    encode: Callable[[Sequence[str]], Mapping[str, Tensor]] | None = None,
    text: Any = None,
    batch: int = 256,
    **sampling: Any,
) -> Any:
    """Draw `num` samples (of each prompt) on the network's device, in batches; `values` of the
    result are in the model's own range, (num, ...) on the CPU.

    `seed` None: the run's. `noise`: what samples begin with, in place of the seed's. `conditions`:
    inputs of the network by name, (num, ...) each, for families that complete rows of data;
    `encode`: the frozen encoder of prompts, for networks that were trained with one; `text`: the
    codec of a model of text. `sampling` are fields of the section `sampling`, such as `steps=50`.
    """
    contract = part("contract")
    sampler = build_sampler(config, text, **sampling)
    if prompts and sampler.draws_per_prompt:
        num *= len(prompts)
    if conditions is None:
        first = seed if sampler.draws_per_prompt and noise is None else None
        texts = [contract.Prompt(text) for text in prompts]
        request = contract.SampleRequest(
            label, texts, encode=encode, seed=first, classes=config["classes"]
        )
        conditions = sampler.conditions(num, request)
    key = f"{config['seed'] if seed is None else seed}/samples"
    device = next(network.parameters()).device
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "big") >> 1)
    return part("processes.draws").draw_samples(
        sampler, network, conditions, num, generator, batch, noise=noise
    )


class LoadedModel:
    """A network with its weights, in evaluation mode, and what its sampler needs; `text` is a model
    of text's codec.
    """

    def __init__(self, network: nn.Module, config: Config, text: Any = None) -> None:
        self.network = network
        self.config = config
        self.text = text

    def sample(self, num: int = 4, **options: Any) -> Any:
        """Draw samples; `options` are those of `draw`."""
        return draw(self.network, self.config, num, text=self.text, **options)


def load(folder: str | Path = Path(__file__).parent, device: str = "cpu") -> LoadedModel:
    """Load the weights of an exported folder."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    network = build_network(config)
    network.load_state_dict(load_file(Path(folder) / "weights.safetensors"))
    return LoadedModel(network.to(device).eval(), config, open_text(folder))
