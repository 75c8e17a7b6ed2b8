"""Recording of an engine's steps in the real training loop: nothing that it computes with is changed."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ditlab.checking.prove.life.observed_steps import sample_digests, tensor_digest
from ditlab.checking.prove.records import DrawKey, GroupSetting, RecordedPass, RecordedStep, SliceKey
from ditlab.data.loading.transfer import MicroBatch
from ditlab.training.state import TrainingState
from ditlab.training.stepping import Stepper


class RecordingStepper(Stepper):
    """Stepper that keeps what its state holds around each step, by hooks; the training itself is `Stepper`'s."""

    recorded: list[RecordedStep]

    def step(self, micro_batches: Sequence[MicroBatch], is_logged: bool) -> None:
        """Train one step, and record it."""
        state = self._state
        record = RecordedStep(state.step, _copied(state), state.engine.scalars())
        record.wrong_before = _wrong_weights(state, record.before)
        fields = self._inputs.names_read
        with _watching(state, record, fields, [part.counts for part in self._share.passes]):
            super().step(micro_batches, is_logged)
        record.after, record.scalars_after = _copied(state), state.engine.scalars()
        record.wrong_weights = _wrong_weights(state, record.after)
        if state.engine.stage < 3:
            record.computed = {name: tensor_digest(each) for name, each in state.module.named_parameters()}
        self.recorded.append(record)


@contextmanager
def _watching(
    state: TrainingState, record: RecordedStep, fields: Collection[str], counts: Sequence[bool]
) -> Iterator[None]:
    """Record passes and the optimiser's step inside. `counts`: for each pass, whether it counts."""
    held: list[tuple[Mapping[str, Tensor], Any]] = []
    seen = 0

    def enter(_: Any, inputs: tuple[Any, ...]) -> None:
        if inputs[0] == "loss" and torch.is_grad_enabled():
            held.append(inputs[1:3])

    def leave(_: Any, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal seen
        if not held:
            return
        batch, noise = held.pop()
        if counts[seen]:
            key = DrawKey(noise.seed, noise.stream, noise.step, noise.micro_index, noise.micro_size, noise.start)
            components = {name: float(value.detach()) for name, value in output[1].items()}
            samples = sample_digests(batch, fields)
            record.passes.append(RecordedPass(key, samples, float(output[0].detach()), components))
        seen += 1

    partitions = state.engine.partitions
    hooks: list[Any] = [
        state.module.register_forward_pre_hook(enter),
        state.module.register_forward_hook(leave),
        partitions.adam.register_step_pre_hook(_gradient_keeper(state, record)),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _gradient_keeper(state: TrainingState, record: RecordedStep) -> Callable[..., None]:
    """Return a hook that keeps gradients and settings of the groups that are stepped; ZeRO-3 steps one at a time."""
    partitions = state.engine.partitions

    def keep(adam: Any, *_: Any) -> None:
        index_of = {id(flat): index for index, flat in enumerate(partitions.flats)}
        for group in adam.param_groups:
            for flat in group["params"]:
                index = index_of[id(flat)]
                for name in partitions.members[index]:
                    record.rates[name] = GroupSetting(float(group["lr"]), float(group["weight_decay"]))
                if flat.grad is None:
                    continue
                gradient = flat.grad.detach().contiguous()
                for part in partitions.slices_of[index]:
                    values = part.of(gradient).float().to("cpu", copy=True)
                    record.gradients["gradient", part.name, part.start] = values
        scale = getattr(adam, "grad_scale", None)
        record.clip_factor = 1.0 if scale is None else float(scale)

    return keep


def _copied(state: TrainingState) -> dict[SliceKey, Tensor]:
    """Copy a worker's slices, and the buffers that a checkpoint holds, to the host."""
    copied = {key: values.detach().to("cpu", copy=True) for key, values in state.engine.state()}
    for name, buffer in state.buffers.items():
        copied["buffer", name, 0] = buffer.detach().float().view(-1).to("cpu", copy=True)
    return copied


def _wrong_weights(state: TrainingState, held: Mapping[SliceKey, Tensor]) -> list[str]:
    """Return the parameters whose values, as the network computes with them, are not this worker's masters.

    With ZeRO-3 these are the shards between passes. Whether workers agree on whole parameters is for `join_steps`.
    """
    computed = dict(state.module.named_parameters())
    wrong = []
    for (kind, name, start), master in held.items():
        if kind != "master":
            continue
        whole = computed[name].detach()
        shard = getattr(computed[name], "ds_tensor", None)
        if shard is not None:
            values = shard.detach().to("cpu").view(-1)[: master.numel()]
        else:
            values = whole.to("cpu").reshape(-1)[start : start + master.numel()]
        if not torch.equal(values, master.to(values.dtype)):
            wrong.append(name)
    return wrong
