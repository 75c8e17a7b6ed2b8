"""A full-size step of each family on a GPU, in bfloat16: utilisation, rate, memory, waits; and what
needs a GPU to try.

    python benchmarks/step/full_size.py --device cuda [--only dit ...] [--rounds 8] [--steps
        4]
    python benchmarks/step/full_size.py --quick [--only dit ...]

Each part runs in a process of its own: one that fails, or takes more than 5 minutes, costs itself
alone. Parts that are families (`families.FULL`) train on a generated batch through the platform's
engine, with compiled blocks; where DeepSpeed is not installed, through a loop that keeps the same
state (`plain.training.MixedTraining`). They print

- utilisation: the operations of forward and backward passes by `ditlab_addons.plan`, over the
seconds of a step, over
  the operations a second of a product of matrices in bfloat16 (8192 x 8192) in the same round. In a
      round the host runs
  ahead through some steps and waits once, behind the last; then comes the fastest of three
      products;
- the peak of a step's tensors, by torch's allocator, over what `ditlab plan` says of it: with eager
blocks, which it
  plans, and with compiled ones. The loop without DeepSpeed has no buffer that gradients are reduced
      in, and its plan
  has none either;
- how often the host waits for the GPU in a step whose loss nobody reads, by the calls to CUDA in a
profile, and the
  lines that torch's debug mode names;
- loss and gradient norm of the same step with eager and with compiled blocks, which must agree.

Of the other parts, `PROVED` are settings whose steps `ditlab prove` compares with the reference
trainer's, which needs DeepSpeed; `TESTED` are tests. What cannot run is skipped, and says why.
`--quick` takes sizes that measure nothing.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.families import EXPERIMENTS, FULL, SCALED_DOWN, generated_batch
from benchmarks.peak_memory import step_peak
from benchmarks.plain.training import MixedTraining
from benchmarks.rounds import Measured, Timed, report, report_beside, timed
from benchmarks.run_all import is_installed
from benchmarks.step.family_step import PRODUCT, product_rate
from ditlab.data.loading.transfer import send
from ditlab.data.processes import end_with_parent
from ditlab.engine.compilation import compile_blocks
from ditlab.engine.distributed import single_process
from ditlab.engine.engine import Engine, TrainingModule
from ditlab.home import Home
from ditlab.inputs.flops import step_flops
from ditlab.inputs.meta_step import DataShape
from ditlab.inputs.noise import KeyedNoise
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment
from ditlab.spec.values import format_bytes
from ditlab_addons.plan.frozen_encoders import EncoderWork
from ditlab_addons.plan.pass_memory import pass_memory
from ditlab_addons.plan.worker_memory import (
    ParameterSizes,
    WorkerMemory,
    ZeroSetting,
    setting_memory,
)
from ditlab_models.contract import PreparingObjective
from ditlab_models.parameters import count_parameters

ROOT = Path(__file__).parents[2]
AIMS = {"region": 0.5, "dit": 0.5, "dlm": 0.45, "pixelhdm": 0.4}
"""Wanted utilisation."""
PROVED = {
    "compile": ("digits/dit", "training.precision=bf16", "engine.compile=true"),
    "muon": ("digits/muon", "training.precision=bf16"),
    "offload": ("digits/dit", "training.precision=bf16", "engine.zero.offload=cpu"),
    "activation_offload": (
        "digits/dit",
        "training.precision=bf16",
        "engine.activation_offload=cpu",
    ),
    "fp16": ("digits/dit", "training.precision=fp16"),
}
"""Experiment and changes of the parts that `ditlab prove` decides."""
TESTED = {"flex": "test_attention_by_tiles", "gradients": "test_loss_and_gradients"}
"""Tests of tests/ditlab_models/devices/test_cuda.py, by the beginning of their names."""
PARTS = (*FULL, *PROVED, *TESTED)
LIMIT = 300
"""Seconds of a part."""
SKIPPED = 77
"""Exit code of a part that cannot run here."""
ROUNDING = 0.1
"""Largest relative difference of loss and gradient norm between compiled and eager steps;
bfloat16's rounding alone made 0.05 of a small U-Net on a CPU."""
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
"""Calls in which the host waits for a GPU."""
CPU = torch.device("cpu")


class Skipped(Exception):
    """Reason why a part cannot run here."""


class FullStep:
    """Optimiser steps of an experiment on one generated batch."""

    def __init__(
        self, experiment: Experiment, device: torch.device, trainer: Any, objective: Any
    ) -> None:
        self._experiment, self._device, self._trainer, self._objective = (
            experiment,
            device,
            trainer,
            objective,
        )
        size = experiment.micro_size
        whole = generated_batch(experiment, device.type)
        self._batches = [
            {name: values[start : start + size] for name, values in whole.items()}
            for start in range(0, experiment.batch.size, size)
        ]
        read = objective.prepared_from if isinstance(objective, PreparingObjective) else ()
        self._on_host = [{name: batch[name].cpu() for name in read} for batch in self._batches]

    def __call__(self, number: int = 1, lr: float | None = None) -> tuple[Tensor, Tensor]:
        """Take step `number`, which draws depend on; return loss and gradient norm, and read
        neither.
        """
        for index, batch in enumerate(self._batches):
            noise = KeyedNoise(0, "train", number, index, self._experiment.micro_size, self._device)
            if isinstance(self._objective, PreparingObjective):
                prepared = self._objective.prepare(self._on_host[index], replace(noise, device=CPU))
                batch = batch | {
                    name: send(values, self._device) for name, values in prepared.items()
                }
            loss = self._trainer.forward_backward(batch, noise, index == len(self._batches) - 1)[
                "loss"
            ]
        norm = self._trainer.step(
            number, self._experiment.optimizer.lr if lr is None else lr, loss.isfinite()
        )
        return loss, norm


@contextmanager
def full_step(
    experiment: Experiment, device: torch.device, has_deepspeed: bool
) -> Iterator[FullStep]:
    """Build a trainer, and yield its step."""
    torch.manual_seed(0)
    network: Any = experiment.family.build_network(experiment.model)
    objective: Any = experiment.family.build_objective(experiment.objective, experiment.model, None)
    module = TrainingModule(network, objective)
    for parameter in module.parameters():
        if not parameter.any():  # layers that begin at zero would hide the blocks before them
            torch.nn.init.normal_(parameter, std=0.02)
    with ExitStack() as stack:
        trainer: Any
        if has_deepspeed:
            rank = stack.enter_context(single_process(use_gpu=device.type == "cuda"))
            trainer = Engine(module, experiment, rank)
            stack.callback(trainer.close)
        else:
            compile_blocks(network, device, whole_gathers=False)
            training = experiment.training
            max_norm, ema = getattr(training.clip, "max_norm", None), training.ema
            trainer = MixedTraining(
                module.to(device),
                experiment.accumulation,
                experiment.optimizer,
                max_norm,
                ema and ema.decay,
            )
        yield FullStep(experiment, device, trainer, objective)


def planned_memory(experiment: Experiment, on_gpu: bool, has_deepspeed: bool) -> WorkerMemory:
    """Plan a step as `ditlab plan` does; for the loop without DeepSpeed without the engine's buffer
    of gradients.
    """
    data, size = DataShape(), experiment.micro_size
    sizes, passes = (
        ParameterSizes.of_experiment(experiment, data),
        pass_memory(experiment, data, size, on_gpu),
    )
    return setting_memory(
        experiment,
        data,
        ZeroSetting(1),
        size,
        on_gpu and has_deepspeed,
        sizes,
        passes,
        EncoderWork(),
    )


def runtime_calls(work: Callable[[], object], device: torch.device) -> Counter[str]:
    """Count the calls of `WAITS` in a piece of work."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiled:
        work()
    return Counter({each.key: each.count for each in profiled.key_averages() if each.key in WAITS})


def some_steps(step: Callable[[], object], number: int) -> None:
    """Take so many steps."""
    for _ in range(number):
        step()


def waiting_lines(work: Callable[[], object]) -> list[str]:
    """Return the lines of Python in which torch's debug mode of CUDA says that the host waits, each
    once.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found = (each for each in caught if "synchronizing CUDA operation" in str(each.message))
    return sorted({f"{Path(each.filename).name}:{each.lineno}" for each in found})


def measure_rounds(
    step: FullStep, rounds: int, steps: int, device: torch.device
) -> list[tuple[Timed, float]]:
    """Measure what a step takes, and the product's operations a second, round by round."""

    def some() -> None:
        some_steps(step, steps)
        if device.type == "cuda":
            torch.cuda.synchronize()

    some()
    found = []
    for _ in range(rounds):
        took = timed(some)
        one = Timed(took.seconds / steps, took.processor / steps, took.load)
        found.append((one, product_rate(device, torch.bfloat16)))
    return found


def measure_family(name: str, options: argparse.Namespace) -> None:
    """Measure a family's step. Raises ValueError where compiled blocks give another step than eager
    ones.
    """
    device, is_engine = torch.device(options.device), options.has_deepspeed
    on_gpu = device.type == "cuda"
    experiment = FULL[name].load(SCALED_DOWN[name] if options.quick else [])
    kind = torch.cuda.get_device_name() if on_gpu else "cpu"
    work, memory = step_flops(experiment).model, planned_memory(experiment, on_gpu, is_engine)
    total = count_parameters(experiment.model, experiment.objective).total
    print(
        f"{name} on {kind}, {'DeepSpeed' if is_engine else 'a loop without DeepSpeed'}: "
        f"{total:,} parameters, {experiment.batch.size} samples and {work / 1e12:.3g} TFLOP a "
        "step",
        flush=True,
    )
    with full_step(experiment, device, is_engine) as step:

        def at_peak() -> int:
            at_rest = torch.cuda.memory_allocated() if on_gpu else memory.state.device.total
            return at_rest + step_peak(step, device)

        with torch.compiler.set_stance("force_eager"):
            eager = [float(each) for each in step(0, lr=0.0)]
        compiled = [float(each) for each in step(0, lr=0.0)]  # before any step changes the weights
        with torch.compiler.set_stance("force_eager"):
            peaks = {"eager": at_peak()}
        found = measure_rounds(step, options.rounds, options.steps, device)
        peaks["compiled"] = at_peak()
        one, three = (runtime_calls(partial(some_steps, step, number), device) for number in (1, 3))
        # and not its own
        waits = {
            call: (count - one[call]) / 2 for call, count in three.items() if count > one[call]
        }
        lines = waiting_lines(step) if on_gpu else []
    seconds = statistics.median(took.seconds for took, _ in found)
    products = [took._replace(seconds=work / rate) for took, rate in found]
    ratios = [
        product.seconds / took.seconds for (took, _), product in zip(found, products, strict=True)
    ]
    measured = Measured(
        seconds,
        experiment.batch.size / seconds,
        statistics.median(ratios),
        peaks["compiled"],
        device=kind,
    )
    size, rate = PRODUCT[device.type], statistics.median(rate for _, rate in found)
    print(
        f"  {seconds * 1e3:.1f} ms, {measured.samples_per_second:.4g} samples/s, product "
        f"{rate / 1e12:.3g} TFLOP/s"
    )
    if name in AIMS:
        peer = f"a product of {size} x {size}"
        report_beside(
            f"{name}, utilisation",
            peer,
            [took for took, _ in found],
            products,
            at_least=AIMS[name],
            measured=measured,
        )
    else:
        report(f"{name}, utilisation", ratios, measured)
    for form, peak in peaks.items():
        planned = memory.peak.total
        ratio, words = (
            peak / planned,
            f"{format_bytes(peak)}, planned {format_bytes(planned)} ({memory.peak_phase})",
        )
        verdict = "reached" if 0.9 <= ratio <= 1.1 else "missed"
        report(
            f"{name}, {form} step's memory over its plan",
            [ratio],
            Measured(peak_memory=peak, device=kind),
            f"{words}, wanted 0.9 to 1.1: {verdict}",
        )
    calls = ", ".join(f"{call} {count:g}" for call, count in waits.items())
    where = ", ".join(filter(None, (calls, *lines))) or "none"
    report(
        f"{name}, waits of the host over steps",
        [sum(waits.values())],
        Measured(device=kind),
        f"{where}; wanted 0",
    )
    pairs = ", ".join(
        f"{what} {one:.5g} eager and {other:.5g} compiled"
        for what, one, other in zip(("loss", "gradient norm"), eager, compiled, strict=True)
    )
    if not all(
        abs(one - other) <= ROUNDING * abs(one) for one, other in zip(eager, compiled, strict=True)
    ):
        raise ValueError(f"compiled blocks give another step: {pairs}")
    print(f"  {pairs}", flush=True)


def prove_setting(name: str, options: argparse.Namespace) -> None:
    """Prove a setting on this device. Raises ValueError where it is off, Skipped where it cannot be
    tried.
    """
    if not options.has_deepspeed:
        raise Skipped("needs deepspeed")
    if name == "fp16" and options.device == "cpu":
        raise Skipped("needs a GPU")
    spec, *changes = PROVED[name]
    from ditlab_addons.check.prove.proving import prove_experiment

    with tempfile.TemporaryDirectory() as home:
        os.environ["DITLAB_HOME"] = home
        gpus = f"resources={{workers: 1, gpus_per_worker: {int(options.device == 'cuda')}}}"
        proof = prove_experiment(
            load_experiment(EXPERIMENTS / f"{spec}.yaml", [gpus, *changes]), Home.from_environment()
        )
    if not proof.holds:
        raise ValueError(proof.first_off or proof.verdict)
    print(f"  {proof.engine}: {len(proof.comparisons)} comparisons hold")


def run_test(name: str, options: argparse.Namespace) -> None:
    """Run a test of kernels. Raises ValueError with its first error, Skipped where it cannot be
    tried.
    """
    if options.device == "cpu":
        raise Skipped("needs a GPU")
    if not is_installed("pytest"):
        raise Skipped("needs pytest")
    tests = ROOT / "tests" / "ditlab_models" / "devices" / "test_cuda.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--noconftest",
        "-rs",
        "-k",
        TESTED[name],
        str(tests),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = (done.stdout or done.stderr or "pytest printed nothing").splitlines()
    if done.returncode:
        errors = [line for line in lines if line.startswith("E  ")] or lines[-1:]
        raise ValueError(errors[0].removeprefix("E").strip())
    if " passed" not in lines[-1]:
        raise Skipped(next((line for line in lines if line.startswith("SKIPPED")), lines[-1]))
    print(f"  {lines[-1]}")


def run_part(name: str, options: argparse.Namespace) -> None:
    """Run a part, the body of its process; print how it ended, and exit with a code that says so
    too.
    """
    end_with_parent()
    run = measure_family if name in FULL else prove_setting if name in PROVED else run_test
    try:
        run(name, options)
    except Skipped as reason:
        print(f"{name}: skipped: {reason}", flush=True)
        sys.exit(SKIPPED)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        print(f"{name}: failed: {type(error).__name__}: {lines[0]}", flush=True)
        sys.exit(1)
    print(f"{name}: passed", flush=True)


def run_alone(name: str, options: argparse.Namespace) -> int:
    """Run a part in a process of its own; return its exit code."""
    process, begin = (
        multiprocessing.get_context("spawn").Process(target=run_part, args=(name, options)),
        time.time(),
    )
    process.start()
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        process.join()
        print(f"{name}: failed: it took longer than {LIMIT} s")
    elif process.exitcode not in (0, 1, SKIPPED):
        print(f"{name}: failed: its process ended with exit code {process.exitcode}")
    print(f"  {time.time() - begin:.0f} s in all", flush=True)
    return process.exitcode or 0


def main() -> int:
    """Run all parts; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="this part alone; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="steps of a round")
    parser.add_argument("--device", choices=list(PRODUCT), default="cpu")
    parser.add_argument("--quick", action="store_true", help="sizes that measure nothing")
    options = parser.parse_args()
    if options.device == "cpu" and not options.quick:
        parser.error("full sizes need --device cuda; --quick tries the code on a CPU.")
    options.has_deepspeed = is_installed("deepspeed")
    codes = {name: run_alone(name, options) for name in options.only or PARTS}
    done = {name: code for name, code in codes.items() if code != SKIPPED}
    failed = [name for name, code in done.items() if code]
    if done:
        passed, note = 1 - len(failed) / len(done), failed and f"failed: {', '.join(failed)}"
        report(
            "parts that passed over those that ran",
            [passed],
            Measured(device=options.device),
            note or "",
        )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
