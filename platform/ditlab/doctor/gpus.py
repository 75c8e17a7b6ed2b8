"""Health of a node's GPUs: read from `nvidia-smi`, judged purely; and a matrix product against the CPU's."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ditlab.doctor.machine import Finding

QUERY = (
    "index,name,driver_version,ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.active,memory.used,"
    "memory.total"
)
THROTTLE_REASONS = {0x8: "hardware slow-down", 0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake"}
"""Reasons for a reduced clock that point to a fault; idleness and the power cap do not."""
BUSY_BYTES = 2 << 30  # bytes in use before a run: a driver takes up to one GiB by itself
MAX_ERROR = 1e-3  # relative: float32 sums of 1024 products are right to 1e-5; TF32, where somebody set it, to 1e-3


@dataclass(frozen=True)
class Gpu:
    """State of one card, as its driver reports it."""

    node: str
    index: int
    name: str
    driver: str
    uncorrected: int | None
    """Uncorrected ECC errors since the driver was loaded; None for a card without ECC."""
    throttled: int
    """Bits of `THROTTLE_REASONS`."""
    used: int
    """Bytes of memory in use."""
    total: int
    """Bytes of memory."""


def read_gpus() -> list[list[str]]:
    """Rows of `nvidia-smi` on this node, one for each card, in the order of `QUERY`.

    Raises RuntimeError where `nvidia-smi` does not answer.
    """
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stdout", "") or "").strip().splitlines()
        raise RuntimeError(f"nvidia-smi does not answer ({detail[0] if detail else error})") from None
    return [[part.strip() for part in line.split(",")] for line in output.splitlines() if line.strip()]


def parse_gpu(node: str, row: Sequence[str]) -> Gpu:
    """Build a card's state from a row of `read_gpus`."""
    index, name, driver, uncorrected, throttled, used, total = row
    return Gpu(
        node, int(index), name, driver, int(uncorrected) if uncorrected.isdigit() else None,
        int(throttled, 16) if throttled.startswith("0x") else 0, int(float(used)) << 20, int(float(total)) << 20,
    )  # fmt: skip


def matmul_error(device: str = "cuda") -> float:
    """Largest relative error of a product of two 1024x1024 matrices, against the CPU's in float64."""
    source = torch.Generator().manual_seed(0)
    a, b = (torch.rand(1024, 1024, generator=source) for _ in range(2))  # positive: no sum is near zero
    right = a.double() @ b.double()
    found = (a.to(device) @ b.to(device)).cpu().double()
    return float(((found - right) / right).abs().max())


def judge_gpus(gpus: Sequence[Gpu], errors: Sequence[tuple[str, float]]) -> list[Finding]:
    """Findings on GPUs; `errors` has node and `matmul_error` of each GPU that computed a product."""
    found = []
    for gpu in gpus:
        what = f"GPU {gpu.index} of {gpu.node}"
        if gpu.uncorrected:
            remedy = "take the node out, reset the card or have it replaced (`nvidia-smi -q -d ECC`)"
            found.append(Finding("missing", what, f"{gpu.uncorrected} uncorrected memory errors (ECC)", remedy))
        if reasons := [text for bit, text in THROTTLE_REASONS.items() if gpu.throttled & bit]:
            found.append(Finding("note", what, f"runs slower: {', '.join(reasons)}", "look at its cooling and power"))
        if gpu.used > BUSY_BYTES:
            taken = f"{gpu.used / 2**30:.1f} of {gpu.total / 2**30:.0f} GiB are in use already"
            found.append(Finding("note", what, taken, "end what uses it (`nvidia-smi` lists it)"))
    for node, error in errors:
        if not error < MAX_ERROR:
            remedy = "take the node out: its card computes wrongly"
            found.append(Finding("missing", f"GPU of {node}", f"a matrix product is off by {error:.1e}", remedy))
    drivers = sorted({gpu.driver for gpu in gpus})
    if len(drivers) > 1:
        where = "; ".join(
            f"{driver} on {', '.join(sorted({gpu.node for gpu in gpus if gpu.driver == driver}))}" for driver in drivers
        )
        found.append(Finding("note", "GPU driver", where, "install the same driver on every node"))
    if gpus and not found:
        names = ", ".join(sorted({gpu.name for gpu in gpus}))
        right = f"; {len(errors)} computed as the CPU does" if errors else ""
        found.append(Finding("ok", "GPUs", f"{len(gpus)} x {names}, driver {drivers[0]}{right}"))
    return found
