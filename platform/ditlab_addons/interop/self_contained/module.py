"""A trained network and its sampler in one file.

It needs torch and safetensors (a model of text perhaps tokenizers), and nothing of DiTLab, which
wrote it:

    >>> from model import load
    >>> samples = load("FOLDER").sample(4).values

Settings stand in the classes whose names end in `Spec`; the network and the sampler below them are
as DiTLab has them, without what these settings do not use.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ditlab_models.contract import Prompt, SampleRequest, TextCodec
from ditlab_models.processes.draws import draw_samples

MODEL: Any = None
OBJECTIVE: Any = None
SAMPLING: Any = None
SEED: int = 0
CLASSES: Sequence[int] = ()
CHOICES: Mapping[str, Sequence[Any]] = {}
LEAST: Mapping[str, float] = {}
build_network: Any = None
build_sampler: Any = None
# The definitions above stand for those of a run.


def sampler_with(text: Any = None, **sampling: Any) -> Any:
    """Build the sampler; `text` is a codec (`open_text`), `sampling` fields of `SAMPLING` that
    change. Raises ValueError for another field, or a value that a field does not take.
    """
    known = [each.name for each in fields(SAMPLING)]
    for name, value in sampling.items():
        if name not in known:
            raise ValueError(f"{name} is no setting of this sampler; it has {', '.join(known)}.")
        if name in CHOICES and value not in CHOICES[name]:
            allowed = ", ".join(map(str, CHOICES[name]))
            raise ValueError(f"{name}={value!r} is no choice; choose from {allowed}.")
        is_number = isinstance(value, int | float)
        if name in LEAST and value is not None and not (is_number and value >= LEAST[name]):
            raise ValueError(f"{name}={value!r} is no number from {LEAST[name]:g} on.")
    return build_sampler(replace(SAMPLING, **sampling), MODEL, OBJECTIVE, text)


def open_text(folder: str | Path) -> Any:
    """Return the codec of a folder's `tokenizer.json`, which needs the library tokenizers unless
    tokens are bytes; None without such a file."""
    path = Path(folder) / "tokenizer.json"
    if not path.exists():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("kind") == "bytes":
        end = bytes([content["end"]])
        return TextCodec(
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
    return TextCodec(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
        tokenizer.get_vocab_size(),
        -1,  # no sampler reads the end token
    )


def draw(
    network: nn.Module,
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
    codec of a model of text. `sampling` are fields of `SAMPLING`, such as `steps=50`.
    """
    sampler = sampler_with(text, **sampling)
    if prompts and sampler.draws_per_prompt:
        num *= len(prompts)
    if conditions is None:
        first = seed if sampler.draws_per_prompt and noise is None else None
        texts = [Prompt(text) for text in prompts]
        request = SampleRequest(label, texts, encode=encode, seed=first, classes=CLASSES)
        conditions = sampler.conditions(num, request)
    key = f"{SEED if seed is None else seed}/samples"
    device = next(network.parameters()).device
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "big") >> 1)
    return draw_samples(sampler, network, conditions, num, generator, batch, noise=noise)


class LoadedModel:
    """A network with its weights, in evaluation mode; `text` is a model of text's codec."""

    def __init__(self, network: nn.Module, text: Any = None) -> None:
        self.network = network
        self.text = text

    def sample(self, num: int = 4, **options: Any) -> Any:
        """Draw samples; `options` are those of `draw`."""
        return draw(self.network, num, text=self.text, **options)


def load(folder: str | Path = Path(__file__).parent, device: str = "cpu") -> LoadedModel:
    """Load the weights of an exported folder."""
    network = build_network(MODEL)
    network.load_state_dict(load_file(Path(folder) / "weights.safetensors"))
    return LoadedModel(network.to(device).eval(), open_text(folder))
