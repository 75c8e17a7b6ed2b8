"""Faults in a copy of the code: text replacements, the spec under which each shows, and the words
that name it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Replacement:
    """Text of a file that stands there once, and what stands in its place."""

    file: str
    """Path in the checkout."""
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """A fault, and what `ditlab prove` must say of it."""

    name: str
    file: str
    old: str
    new: str
    named: str
    """Regular expression that the verdict's sentence on what is off first begins with: `phase, what
    of module, ...`.
    """
    settings: tuple[str, ...] = ()
    """`--set` of the spec, in which the fault shows."""
    spec: str = "dit"
    """Name of the spec: one of `SPECS`."""
    others: tuple[Replacement, ...] = ()

    @property
    def replacements(self) -> tuple[Replacement, ...]:
        return (Replacement(self.file, self.old, self.new), *self.others)


ENGINE = "platform/ditlab/engine/"
TRAINING = "platform/ditlab/training/"
TWO = ("resources.workers=2",)
DIT = """\
name: planted
model: {family: dit, image_size: 8, patch_size: 4, width: 32, depth: 2, num_heads: 2, num_classes: 10}
objective: {weights: {velocity: 1.0, direction: 0.5}}
data: {kind: digits}
batch: {size: 32, micro: 16}
optimizer: {kind: adamw, lr: 1.0e-3, weight_decay: 0.1, betas: [0.9, 0.98]}
schedule: {kind: warmup_cosine, warmup: 10, final: 0.1}
training: {steps: 40, clip: {kind: norm, max_norm: 0.05}, ema: {decay: 0.99}}
engine: {zero: {stage: 1}}
evaluation: {samples: 0, limit: 16}
sampling: {solver: euler, steps: 4}
"""
DLM = """\
name: planted-mask
model: {family: dlm, length: 16, block_size: 4, vocabulary: 256, width: 16, depth: 1, num_heads: 2, condition_width: 8,
  time_width: 8}
data: {kind: text, length: 16}
batch: {size: 16}
training: {steps: 20}
engine: {compile: true}
evaluation: {samples: 0, limit: 16}
sampling: {steps: 2, block: {}}
"""
SPECS = {"dit": DIT, "dlm": DLM}
"""Specs under which faults are looked for, by name."""


FAULTS = (
    Fault(
        "detached branch",
        "models/ditlab_models/dit/network.py",
        "x + self.attention(self.attention_norm(x, condition))",
        "x + self.attention(self.attention_norm(x, condition)).detach()",
        "gradient.*attention",
    ),
    Fault(
        "detached branch behind a gate",
        "models/ditlab_models/layers/adaln.py",
        "self.attention(normed, queries, attend_to(key_mask))",
        "self.attention(normed, queries, attend_to(key_mask)).detach()",
        "gradient.*attention",
        ("model.adaln=zero",),
    ),
    Fault(
        "detached loss component",
        ENGINE + "engine.py",
        "self._weights[name] * value for",
        'self._weights[name] * (value.detach() if name == "direction" else value) for',
        "gradient",
    ),
    Fault(
        "gradient scaled by 2 on one worker",
        ENGINE + "engine.py",
        "total if weight == 1 else total * weight",
        "total * (1 + torch.distributed.get_rank())",
        "gradient",
        TWO,
    ),
    Fault(
        "accumulation forgets a micro-batch",
        TRAINING + "stepping.py",
        "self.share.weight if part.counts else 0.0",
        "self.share.weight if part.counts and number != 1 else 0.0",
        "gradient",
    ),
    Fault(
        "clipping before reduction",
        ENGINE + "engine.py",
        "            self._engine.backward(total if",
        "            for each in self._module.parameters():\n                "
        "each.register_hook(lambda given: given * min(1.0, 0.01 / (1e-30 + "
        "given.norm())))\n            self._engine.backward(total if",
        "gradient",
        (*TWO, "engine.zero.stage=0"),
    ),
    Fault(
        "norm of one worker's part",
        ENGINE + "deepspeed_internals.py",
        "if self._stage and self._world_size > 1:",
        "if False:",
        "norm",
        (*TWO, "engine.zero.stage=2"),
    ),
    Fault(
        "missed all-reduce of one parameter",
        ENGINE + "engine.py",
        "            norm = self._gradient_norm.measure()\n",
        "            next(self._module.parameters()).grad.mul_(1 + "
        "torch.distributed.get_rank())\n            norm = self._gradient_norm.measure()\n",
        "gradient",
        (*TWO, "engine.zero.stage=0"),
    ),
    Fault(
        "clipping left out",
        ENGINE + "update.py",
        "if limit is None:",
        "if True:",
        "clipping",
    ),
    Fault(
        "bf16 master weights",
        ENGINE + "engine.py",
        "        self._engine.step()\n        return norm",
        "        self._engine.step()\n        _ = [flat.data.copy_(flat.data.bfloat16()) "
        "for flat in self.partitions.flats]\n        return norm",
        "master weights",
    ),
    Fault(
        "bf16 arithmetic under fp32",
        ENGINE + "engine.py",
        'if precision == "bf16":',
        'if precision in ("bf16", "fp32"):',
        "loss|gradient",
    ),
    Fault(
        "weight decay on what has none",
        ENGINE + "optimizers.py",
        '"weight_decay": rates.weight_decay',
        '"weight_decay": spec.weight_decay',
        "update, weight decay",
        ("optimizer.no_decay=[bias, norm]",),
    ),
    Fault(
        "learning rate by pattern ignored",
        ENGINE + "optimizers.py",
        ", parameter_label(name))",
        ")",
        "learning rate, of each parameter",
        ('optimizer.lr_patterns={"head*": 2.0}',),
    ),
    Fault(
        "frozen weights that move",
        ENGINE + "engine.py",
        "        self._engine.step()\n        return norm",
        "        self._engine.step()\n"
        "        _ = [values.mul_(1.001) for _, values in self._frozen.slices()]\n"
        "        return norm",
        "update, frozen weights",
        ("training.freeze=[blocks.0]",),
    ),
    Fault(
        "bias correction off by one",
        ENGINE + "deepspeed_internals.py",
        '"step": torch.zeros(',
        '"step": torch.ones(',
        "moments, updates so far",
    ),
    Fault(
        "epsilon as if inside the root",
        ENGINE + "optimizers.py",
        "eps=spec.eps",
        "eps=spec.eps**0.5",
        "update",
        ("optimizer.eps=1e-6",),
    ),
    Fault(
        "beta2 used for beta1",
        ENGINE + "optimizers.py",
        "betas=spec.betas",
        "betas=(spec.betas[1], spec.betas[1])",
        "moments, first moment",
    ),
    Fault(
        "loss weight ignored",
        ENGINE + "engine.py",
        "sum(self._weights[name] * value for",
        "sum(value for",
        "gradient",
    ),
    Fault(
        "mean over uneven micro-batches",
        TRAINING + "plan.py",
        "slots * world_size / num",
        "1.0",
        "gradient",
        ("resources.workers={min: 1, max: 2}", "batch.size=24", "batch.micro=8"),
    ),
    Fault(
        "EMA of stale weights",
        ENGINE + "averages.py",
        "partitions.adam.register_step_post_hook",
        "partitions.adam.register_step_pre_hook",
        "average",
    ),
    Fault(
        "EMA with the wrong decay",
        ENGINE + "averages.py",
        "(1 + step) / (10 + step)",
        "(1 + step) / (9 + step)",
        "average",
    ),
    Fault(
        "EMA not saved",
        ENGINE + "averages.py",
        "for field, flats in self._flats.items()}",
        "for field, flats in ()}",
        "average, averages held.*state holds no ema",
    ),
    Fault(
        "EMA not loaded",
        TRAINING + "state.py",
        'saved.has("ema"))\n        self._load_buffers',
        "False)\n        self._load_buffers",
        "resume, exponential average",
    ),
    Fault(
        "moments swapped at resume",
        TRAINING + "state.py",
        "self.engine.load_state(saved.read, ",
        'other = {"exp_avg": "exp_avg_sq", "exp_avg_sq": "exp_avg"}\n'
        "        self.engine.load_state(lambda kind, *place: saved.read(other.get(kind, kind), *place), ",
        "resume, (first|second) moments",
    ),
    Fault(
        "step count of the optimiser lost at resume",
        ENGINE + "engine.py",
        'int(scalars["adam_step"])',
        "0",
        "resume, counters.*adam_step",
    ),
    Fault(
        "network computes with stale weights after resume",
        ENGINE + "deepspeed_internals.py",
        "optimizer.update_lp_params()",
        "pass",
        "resume, losses|master weights.*before",
        ("engine.zero.stage=1",),
    ),
    Fault(
        "noise replayed after resume",
        TRAINING + "state.py",
        "        self.position = position",
        "        self.position = position\n        self.first = step",
        "draws, keys of random numbers",
        others=(
            Replacement(
                TRAINING + "stepping.py",
                '"train", self.state.step, index',
                '"train", self.state.step - getattr(self.state, "first", 0), index',
            ),
        ),
    ),
    Fault(
        "a batch skipped after resume",
        TRAINING + "state.py",
        "self.position = position",
        "self.position = position + 32",
        "resume, .*(sample|position)",
    ),
    Fault(
        "a sample skipped after resume",
        TRAINING + "trainer.py",
        "        stream = copy_stream(self.rank.device)\n",
        "        stream = copy_stream(self.rank.device)\n        if state.step:\n"
        "            whole, size = batches.rows, batches.step_rows\n            "
        "object.__setattr__(batches, 'rows', lambda n, k: whole(n, k + 1)[1 : k * size + "
        "1])\n",
        "draws, samples and their order",
    ),
    Fault(
        "times not keyed by the step",
        "platform/ditlab/inputs/noise.py",
        "self.stream, self.step, self.micro_index, name",
        "self.stream, self.micro_index, name",
        "draws, random numbers",
    ),
    Fault(
        "schedule off by one step",
        TRAINING + "stepping.py",
        "self._plan, state.step)",
        "self._plan, state.step + 1)",
        "learning rate",
    ),
    Fault(
        "cosine that ends a step late",
        "platform/ditlab/spec/optimization.py",
        "max(1, total - 1 - length)",
        "max(1, total - length)",
        "learning rate",
    ),
    Fault(
        "dropout of conditions alike on all samples",
        "models/ditlab_models/processes/flow.py",
        'noise_source.uniform("label_dropout", label.shape)',
        'noise_source.uniform("label_dropout", label.shape)[:1].expand(label.shape)',
        "dropout of conditions.*alike",
    ),
    Fault(
        "dropout of conditions at twice the rate",
        "models/ditlab_models/layers/embeddings.py",
        "uniform < rate",
        "uniform < 2 * rate",
        "dropout of conditions.*share",
    ),
    Fault(
        "evaluation on training weights",
        ENGINE + "averages.py",
        '        if "ema" not in self._flats:\n            return',
        "        if True:\n            return",
        "evaluation.*weights in training",
    ),
    Fault(
        "average left in place after evaluation",
        ENGINE + "engine.py",
        "            yield\n        if averaged:\n            self.averages.exchange()",
        "            yield",
        "evaluation.*after it",
    ),
    Fault(
        "sampler without average",
        "platform/ditlab/checkpoints/reader.py",
        'kind = "ema" if averaged',
        'kind = "master" if averaged',
        "sample.*weights that sampling opens",
    ),
    Fault(
        "a compiled graph that ignores a mask",
        "models/ditlab_models/layers/attention.py",
        "(q, k, v, attn_mask=mask)",
        "(q, k, v, attn_mask=None if torch.compiler.is_compiling() else mask)",
        "gradient|loss",
        spec="dlm",
    ),
)
