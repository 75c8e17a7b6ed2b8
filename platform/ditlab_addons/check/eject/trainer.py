"""Training of one spec, in plain torch: data, draws, loss, update, checkpoint, samples.

`FileTrainer` reads like a file of its own, which is what `ditlab eject` makes of it: a copy without
what a spec does not use.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.optim.adamw import adamw

from ditlab.data.permutations import keyed_permutation
from ditlab.inputs.noise import KeyedNoise, derived_seed, fixed_noise
from ditlab.spec.optimization import NormClip
from ditlab_addons.check.eject.rules import (
    CLIP_TINY,
    UpdateRates,
    clip_limit,
    ema_decay,
    muon_change,
    parameter_rates,
    power_share,
    rate_factor,
)
from ditlab_addons.check.eject.settings import Settings
from ditlab_models.contract import RealRows, SampleRequest
from ditlab_models.parameters import parameter_roles
from ditlab_models.pixels import to_bytes


def read_store(folder: Path) -> dict[str, np.ndarray]:
    """Read the columns of an Arrow store into memory: (rows, *shape) each."""
    file = folder / "store.json"
    if not file.is_file():
        raise SystemExit(f"STORE names {folder}, which holds no store; correct it in this file")
    manifest = json.loads(file.read_text())
    files = [pa.memory_map(str(folder / shard["file"])) for shard in manifest["shards"]]
    table = pa.concat_tables([pa.ipc.open_file(file).read_all() for file in files])
    found = {}
    for name, column in manifest["columns"].items():
        values = table.column(name).combine_chunks()
        if column["shape"]:
            values = values.storage.flatten()
        found[name] = values.to_numpy().reshape(-1, *column["shape"])
    return found


def split_rows(
    settings: Settings, num: int, columns: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of training, ascending, and the held-out ones, shuffled, of `num` in all."""
    if settings.split == "none":
        return np.arange(num), np.arange(0)
    if settings.split == "classes":
        is_held = np.zeros(num, bool)
        for name, classes in settings.held_out_classes:
            is_held |= np.isin(columns[name], classes)
        held_out = np.flatnonzero(is_held)
        held_out = held_out[keyed_permutation("ditlab.hold-out", len(held_out))]
    elif settings.split == "runs":
        # neighbouring rows of text share documents
        runs = np.array_split(np.arange(num), settings.held_out_runs)
        order = keyed_permutation("ditlab.hold-out-runs", len(runs))
        rows = np.concatenate([runs[run] for run in order])
        held_out = rows[: max(1, round(num * settings.held_out_share))]
        held_out = held_out[keyed_permutation("ditlab.hold-out", len(held_out))]
    elif settings.split == "groups":
        size = settings.held_out_group
        order = keyed_permutation("ditlab.hold-out", num // size)
        groups = order[: max(1, round(len(order) * settings.held_out_share))]
        held_out = (groups[:, None] * size + np.arange(size)).reshape(-1)
        held_out = held_out[keyed_permutation("ditlab.hold-out", len(held_out))]
    else:
        order = keyed_permutation("ditlab.hold-out", num)
        held_out = order[: max(1, round(num * settings.held_out_share))]
    is_train = np.ones(num, bool)
    is_train[held_out] = False
    return np.flatnonzero(is_train), held_out


def change_sample(settings: Settings, raw: dict[str, np.ndarray], place: int, draw: int) -> None:
    """Mirror the image at a place of a batch, and choose a line of its caption; `draw`: its number
    in the run.
    """
    if settings.flip and keyed_uniform("flip", settings.seed, draw) < settings.flip:
        raw["image"][place] = raw["image"][place][..., ::-1]
    if settings.one_caption:
        lines = raw["caption"][place].tobytes().rstrip(b"\0").split(b"\n")
        line = lines[int(keyed_uniform("caption", settings.seed, draw) * len(lines))]
        padded = line.ljust(raw["caption"].shape[1], b"\0")
        raw["caption"][place] = np.frombuffer(padded, np.uint8)


def keyed_uniform(name: str, seed: int, draw: int) -> float:
    """Return a number of U[0, 1) by SplitMix64 (Steele et al. 2014)."""
    digest = hashlib.blake2b(f"ditlab.{name}/{seed}".encode(), digest_size=8).digest()
    word = (draw * 0x9E3779B97F4A7C15 + int.from_bytes(digest, "little")) % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return ((word ^ word >> 31) >> 11) / 2**53


def cut_captions(raw: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Cut captions to the longest of a batch, rounded up to a multiple of 16 bytes."""
    places = np.flatnonzero((raw["caption"] != 0).any(axis=0))
    longest = int(places[-1]) + 1 if len(places) else 1
    return raw | {"caption": raw["caption"][:, : -(-longest // 16) * 16]}


class Group:
    """Parameters that are updated alike, as views of one tensor, of which each worker updates its
    own range: stage 1 of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054).
    """

    def __init__(
        self,
        settings: Settings,
        parameters: dict[str, nn.Parameter],
        rates: UpdateRates,
        rank: int,
        world: int,
    ) -> None:
        self.rates = rates
        self.names = list(parameters)
        self.shapes = [each.shape for each in parameters.values()]
        sizes = [each.numel() for each in parameters.values()]
        padding = -sum(sizes) % (2 * world)
        self.sizes = [*sizes, padding]
        first = next(iter(parameters.values()))
        parts = [each.detach().reshape(-1) for each in parameters.values()]
        self.weights = torch.cat([*parts, first.new_zeros(padding)])
        self.gradient = torch.zeros_like(self.weights)
        values = self.weights.split(self.sizes)
        gradients = self.gradient.split(self.sizes)
        for parameter, value, gradient in zip(parameters.values(), values, gradients, strict=False):
            parameter.data = value.view(parameter.shape)
            parameter.grad = gradient.view(parameter.shape)
        size = len(self.weights) // world
        self.own = slice(rank * size, (rank + 1) * size)
        """Range of this worker."""
        self.updated = self.own
        """Range that it updates: its own, or all where an update needs whole matrices."""
        moments = ["exp_avg", "exp_avg_sq"]
        if settings.update.kind == "muon" and rates.is_orthogonalised:
            self.updated = slice(0, len(self.weights))
            moments = ["momentum"]
        self.master = self.weights[self.updated].float()
        """Float32 weights of that range: the weights themselves, in float32."""
        self.state = {name: torch.zeros_like(self.master) for name in moments}
        """Moments and averages of that range, by name."""
        self.count = torch.zeros((), device=self.weights.device)
        """Updates, as AdamW counts them."""

    def own_parts(self, flat: Tensor) -> list[Tensor]:
        """Return the values of each parameter in this worker's range of a flat tensor."""
        edges = np.cumsum([0, *self.sizes]).clip(self.own.start, self.own.stop).tolist()
        return [flat[start:stop] for start, stop in pairwise(edges) if start < stop]


class FileTrainer:
    """Network, loss and sampler of the spec, and the state of their training."""

    def __init__(
        self,
        settings: Settings,
        network: Any,
        objective: Any,
        sampler: Any,
        store: Path,
        folder: Path,
    ) -> None:
        """`store`: folder of the data; `folder`: that of log, checkpoints and samples."""
        self.settings = settings
        self.objective = objective
        self.sampler = sampler
        self.folder = folder
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if self.world > 1:
            distributed.init_process_group()
        self.pass_size = settings.pass_size or settings.batch_size // self.world
        if settings.batch_size % (self.pass_size * self.world):
            raise SystemExit(
                f"{settings.batch_size} samples do not divide into passes of {self.pass_size} on "
                f"{self.world} workers"
            )
        columns = read_store(store)
        self.train_rows, self.held_out_rows = split_rows(
            settings, len(next(iter(columns.values()))), columns
        )
        self.columns = columns
        self.epoch_steps = len(self.train_rows) // settings.batch_size
        self.order = np.arange(0)
        self.epoch = -1
        """Epoch of the order."""
        self.network = network
        self.module = nn.ModuleDict({"network": network})
        if settings.has_objective_weights:
            self.module["objective"] = objective.modules
        parameters = dict(self.module.named_parameters())
        rates = {name: UpdateRates(1.0, settings.update.weight_decay) for name in parameters}
        if not settings.update.is_uniform:
            rates = parameter_rates(self.module, settings.update)
            self.roles = parameter_roles(self.module)
        dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float32
        self.module.to(self.device, dtype)
        members: dict[UpdateRates, dict[str, nn.Parameter]] = {}
        for name, own in rates.items():
            members.setdefault(own, {})[name] = parameters[name]
        self.groups = [
            Group(settings, each, own, self.rank, self.world) for own, each in members.items()
        ]
        for group in self.groups:
            for name in self.averages(0, 1):
                group.state[name] = group.master.clone()
        self.clip_statistics: dict[str, float] = {}
        self.step = 0

    # data

    def rows_of_step(self, step: int) -> np.ndarray:
        """Return the places among the training rows of a step's batch (from 0): a permutation an
        epoch, a function of seed and epoch alone.
        """
        settings = self.settings
        epoch, number = divmod(step, self.epoch_steps)
        if epoch != self.epoch:
            key = f"ditlab.epoch/{settings.seed}/{epoch}"
            self.order = keyed_permutation(key, len(self.train_rows))
            self.epoch = epoch
        return self.order[number * settings.batch_size :][: settings.batch_size]

    def batch(self, rows: np.ndarray, draws: range | None = None) -> dict[str, Tensor]:
        """Return rows of the store as the model takes them, (rows, ...) each; `draws`: their
        numbers in the run, in training.
        """
        settings = self.settings
        raw = {name: self.columns[name][rows] for name, *_ in settings.fields}
        if (settings.flip or settings.one_caption) and draws is not None:
            for place, draw in enumerate(draws):
                change_sample(settings, raw, place, draw)
        if settings.cuts_captions:
            raw = cut_captions(raw)
        found = {}
        for name, dtype, ratio, offset in settings.fields:
            values = raw[name]
            if ratio is not None:
                values = values.astype(np.float32) / np.float32(ratio) + np.float32(offset)
            found[name] = torch.from_numpy(values).to(self.device, getattr(torch, dtype))
        return found

    def noise(self, step: int, first: int) -> KeyedNoise:
        """Return the random numbers of the samples from place `first` of a step's batch on: each
        draw has a generator of its own, whose seed is a hash of seed, step, micro-batch and name.
        """
        settings = self.settings
        number, start = divmod(first, settings.drawn_at_once)
        return KeyedNoise(
            settings.seed, "train", step, number, settings.drawn_at_once, self.device, start
        )

    # step

    def train_step(self) -> dict[str, float]:
        """Do one step; return the loss, its components, the gradient's norm and the learning
        rate.
        """
        settings = self.settings
        order = self.rows_of_step(self.step)
        num = settings.batch_size // self.pass_size // self.world
        passes = []
        for number in range(self.rank * num, (self.rank + 1) * num):
            first = number * self.pass_size
            rows = self.train_rows[order[first : first + self.pass_size]]
            begin = self.step * settings.batch_size + first
            batch = self.batch(rows, range(begin, begin + len(rows)))
            passes.append((batch, self.noise(self.step, first)))
        if settings.retires:
            for name in self.objective.retired_fields(self.step):
                for batch, _ in passes:
                    batch.pop(name, None)
        if settings.prepares:
            self.prepare(passes)
        for group in self.groups:
            group.gradient.zero_()
        sums: dict[str, Tensor] = {}
        for batch, noise in passes:
            components = self.objective.loss(self.network, batch, noise)
            weights = self.objective.weights
            total = sum(weights[name] * value for name, value in components.items())
            (total / num).backward()
            for name, value in {"loss": total, **components}.items():
                sums[name] = sums.get(name, 0.0) + value.detach() / (num * self.world)
        if self.world > 1:
            for value in sums.values():
                distributed.all_reduce(value)
            for group in self.groups:
                distributed.all_reduce(group.gradient)
                group.gradient /= self.world
        norm = self.gradient_norm()
        lr = self.learning_rate(self.step)
        self.update(norm, lr)
        self.step += 1
        return {
            **{name: float(value) for name, value in sums.items()},
            "grad_norm": float(norm),
            "lr": lr,
        }

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step (from 0)."""
        settings = self.settings
        return settings.update.lr * rate_factor(
            settings.schedule, step, settings.steps, self.epoch_steps
        )

    def prepare(self, passes: list[tuple[dict[str, Tensor], KeyedNoise]]) -> None:
        """Add what the loss prepares on the host to the batches of a step's passes."""
        settings = self.settings
        for batch, noise in passes:
            few = {name: batch[name].cpu() for name in self.objective.prepared_from}
            on_host = replace(noise, device=torch.device("cpu"))
            for name, values in self.objective.prepare(few, on_host).items():
                batch[name] = values.to(self.device)
        for name in settings.counted:
            count = torch.stack([batch[name] for batch, _ in passes]).sum()
            if self.world > 1:
                distributed.all_reduce(count)
            for batch, _ in passes:
                batch[name] = count / (len(passes) * self.world)

    def gradient_norm(self) -> Tensor:
        """Return the L2 norm of the whole gradient, 0-dim, float32."""
        parts = [part for group in self.groups for part in group.own_parts(group.gradient)]
        norm = torch.stack(torch._foreach_norm(parts, 2, dtype=torch.float32)).norm()
        if self.world > 1:
            square = norm.square()
            distributed.all_reduce(square)
            norm = square.sqrt()
        if not bool(norm.isfinite()):
            raise FloatingPointError(f"the gradient of step {self.step + 1} is not finite")
        return norm

    def update(self, norm: Tensor, lr: float) -> None:
        """Clip the gradient, update weights and averages, and share the new weights."""
        settings = self.settings
        if isinstance(settings.clip, NormClip):
            limit = settings.clip.max_norm
        else:
            limit, self.clip_statistics = clip_limit(
                settings.clip, float(norm), self.clip_statistics
            )
        scale = ((norm + CLIP_TINY) / limit).clamp(min=1.0)
        for group in self.groups:
            gradient = group.gradient[group.updated].float() / scale
            if settings.update.kind == "muon" and group.rates.is_orthogonalised:
                self.muon(group, gradient, lr * group.rates.lr_factor)
            else:
                self.adamw(group, gradient, lr * group.rates.lr_factor)
            for name, share in self.averages(self.step, int(group.count)).items():
                group.state[name].lerp_(group.master, torch.tensor(share, device=self.device))
            self.set_weights(group, group.master)

    def set_weights(self, group: Group, values: Tensor) -> None:
        """Let the network compute with these values of its weights: masters, or an average."""
        if values.data_ptr() != group.weights[group.updated].data_ptr():
            group.weights[group.updated] = values
        if group.updated != slice(0, len(group.weights)):
            own = group.weights[group.own].clone()
            distributed.all_gather(list(group.weights.chunk(self.world)), own)

    def adamw(self, group: Group, gradient: Tensor, lr: float) -> None:
        """Update by AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2)."""
        update = self.settings.update
        adamw(
            [group.master],
            [gradient],
            [group.state["exp_avg"]],
            [group.state["exp_avg_sq"]],
            [],
            [group.count],
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=update.betas[0],
            beta2=update.betas[1],
            lr=lr,
            weight_decay=group.rates.weight_decay,
            eps=update.eps,
        )

    def muon(self, group: Group, gradient: Tensor, lr: float) -> None:
        """Update by Muon: orthogonalised momentum, matrix by matrix."""
        update = self.settings.update
        momentum = group.state["momentum"]
        momentum.copy_(torch.add(gradient, momentum, alpha=update.momentum))
        direction = momentum
        if update.nesterov:
            direction = torch.add(gradient, momentum, alpha=update.momentum)
        kept = 1 - torch.tensor(lr * group.rates.weight_decay, device=self.device)
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        directions = direction.split(group.sizes)
        weights = group.master.split(group.sizes)
        for number, (name, shape) in enumerate(zip(group.names, group.shapes, strict=True)):
            change, factor = muon_change(
                update, self.roles[name], directions[number].view(shape), dtype
            )
            weights[number].mul_(kept).sub_(change.reshape(-1), alpha=lr * factor)
        group.count += 1

    def averages(self, step: int, updates: int) -> dict[str, float]:
        """Return the share of the new weights in each average at a step (from 0), by name."""
        settings = self.settings
        found = {}
        if settings.ema is not None:
            found["ema"] = 1 - ema_decay(settings.ema, step)
        for length in settings.lengths:
            found[f"power_{length:g}"] = power_share(length, updates)
        return found

    # evaluation and samples

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Evaluate inside, with the exponential average in the place of the weights.

        In float32 the masters are the weights themselves, so they are kept and put back.
        """
        self.module.eval()
        held = [group.master.clone() for group in self.groups]
        if self.settings.ema is not None:
            for group in self.groups:
                self.set_weights(group, group.state["ema"])
        with torch.no_grad():
            yield
        if self.settings.ema is not None:
            for group, values in zip(self.groups, held, strict=True):
                self.set_weights(group, values)
        self.module.train()

    def evaluate(self) -> dict[str, float]:
        """Return the loss's metrics over held-out rows, whose times and noise are the same at every
        call.
        """
        settings = self.settings
        held_out = self.held_out_rows[: settings.evaluated]
        sums: dict[str, float] = {}
        for first in range(0, len(held_out), self.pass_size):
            rows = held_out[first : first + self.pass_size]
            noise = fixed_noise(first, self.device)
            values = self.objective.metrics(self.network, self.batch(rows), noise)
            for name, value in values.items():
                total = float(value.double().sum()) if value.ndim else float(value) * len(rows)
                sums[name] = sums.get(name, 0.0) + total
        return self.objective.summary({name: value / len(held_out) for name, value in sums.items()})

    def draw_samples(self, num: int) -> Tensor:
        """Draw samples, the same at every call with the same weights."""
        settings = self.settings
        if settings.takes_rows != "none":
            source = self.held_out_rows if len(self.held_out_rows) else self.train_rows
            places = np.arange(num) % len(source)
            if settings.takes_rows == "completed":
                places = np.arange(min(num, len(source)))
            noise = fixed_noise(0, torch.device("cpu"))
            rows = RealRows(self.batch(source[places]), {}, {}, noise)
            num = len(places)
            conditions = self.sampler.conditions(num, SampleRequest(rows=rows))
        elif settings.classes:
            conditions = self.sampler.conditions(num, SampleRequest(classes=settings.classes))
        else:
            conditions = self.sampler.conditions(num)
        conditions = {name: values.to(self.device) for name, values in conditions.items()}
        generator = torch.Generator(self.device).manual_seed(derived_seed(settings.seed, "samples"))
        return self.sampler.sample(self.network, conditions, num, generator).values

    # checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Return the whole state by kind and parameter, such as `ema/network.head.weight`, on all
        workers.
        """
        settings = self.settings
        found = {}
        for group in self.groups:
            for kind, own in {"master": group.master, **group.state}.items():
                whole = own
                if len(own) < len(group.weights):
                    whole = torch.empty_like(group.weights, dtype=torch.float32)
                    distributed.all_gather(list(whole.chunk(self.world)), own)
                for name, shape, values in zip(
                    group.names, group.shapes, whole.split(group.sizes), strict=False
                ):
                    found[f"{kind}/{name}"] = values.view(shape)
        if settings.has_buffers:
            for name, buffer in self.buffers():
                found[f"buffer/{name}"] = buffer.float()
        return found

    def buffers(self) -> list[tuple[str, Tensor]]:
        """Return the buffers that belong to the state, by name."""
        parameters = dict(self.module.named_parameters())
        state = self.module.state_dict(keep_vars=True)
        return [(name, each) for name, each in state.items() if name not in parameters]

    def save(self) -> None:
        """Write a checkpoint, whole or not at all."""
        tensors = {name: each.contiguous().cpu() for name, each in self.tensors().items()}
        if self.rank:
            return
        scalars = {"adam_step": int(self.groups[0].count), **self.clip_statistics}
        if self.settings.lengths:
            scalars["averages.start"] = 0
        about = {"step": str(self.step), "scalars": json.dumps(scalars)}
        path = self.folder / f"step-{self.step:08d}.safetensors"
        partial = path.with_suffix(".partial")
        save_file(tensors, partial, about)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one: with the bits of a training that never
        stopped.
        """
        settings = self.settings
        found = sorted(self.folder.glob("step-*.safetensors"))
        if not found:
            return
        if not self.rank:
            sys.stdout.write(f"going on from {found[-1]}\n")
        with safe_open(found[-1], "pt") as file, torch.no_grad():
            about = file.metadata()
            if settings.has_buffers:
                for name, each in self.buffers():
                    each.copy_(file.get_tensor(f"buffer/{name}"))
            scalars = json.loads(about["scalars"])
            count = scalars.pop("adam_step")
            for group in self.groups:
                for kind, own in {"master": group.master, **group.state}.items():
                    parts = [file.get_tensor(f"{kind}/{name}").reshape(-1) for name in group.names]
                    padding = torch.zeros(group.sizes[-1])
                    own.copy_(torch.cat([*parts, padding])[group.updated])
                self.set_weights(group, group.master)
                group.count.fill_(count)
        self.step = int(about["step"])
        self.clip_statistics = scalars

    def log(self, values: dict[str, float]) -> None:
        """Write a line of numbers of this step, and print it."""
        if self.rank:
            return
        line = json.dumps({"step": self.step, **values})
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(line + "\n")
        sys.stdout.write(line + "\n")

    def run(self) -> None:
        """Train to the end of the plan, with evaluations and checkpoints on the way."""
        settings = self.settings
        self.resume()
        while self.step < settings.steps:
            values = self.train_step()
            is_last = self.step == settings.steps
            if is_last or self.step % settings.log_every == 0:
                self.log({f"train/{name}": value for name, value in values.items()})
            if len(self.held_out_rows) and (is_last or self.step % settings.evaluate_every == 0):
                with self.averaged():
                    measured = self.evaluate()
                self.log({f"eval/{name}": value for name, value in measured.items()})
            if is_last or self.step % settings.save_every == 0:
                self.save()
        if settings.samples:
            with self.averaged():
                samples = self.draw_samples(settings.samples).float().cpu()
        if settings.samples and not self.rank:
            save_file({"samples": samples}, self.folder / "samples.safetensors")
            if settings.shows == "images":
                write_grid(samples, self.folder / "samples.png")


def keep_copy(file: Path, folder: Path) -> None:
    """Keep a copy of the file in the folder that it trains into, by which the training is known."""
    if int(os.environ.get("RANK", "0")):
        return
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "train.py"
    text = file.read_bytes()
    if copy.exists() and copy.read_bytes() != text:
        raise SystemExit(
            f"{folder} was trained by another text of this file; name a new folder, or remove "
            f"{copy} to go on from its checkpoints."
        )
    copy.write_bytes(text)


def write_grid(images: Tensor, path: Path) -> None:
    """Write images (num, channels, height, width) in [-1, 1] as a PNG, eight a row."""
    rows = [torch.cat(list(row), dim=2) for row in to_bytes(images).split(8)]
    rows = [row for row in rows if row.shape == rows[0].shape]
    grid = torch.cat(rows, dim=1).movedim(0, 2).numpy()
    height, width, channels = grid.shape
    lines = b"".join(b"\0" + line.tobytes() for line in grid)
    colour = 2 if channels == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in parts:
        content += struct.pack(">I", len(data)) + kind + data
        content += struct.pack(">I", zlib.crc32(kind + data))
    path.write_bytes(content)
