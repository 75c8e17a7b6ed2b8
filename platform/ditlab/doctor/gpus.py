"""Health of a node's GPUs: read from `nvidia-smi`, judged purely; and a matrix product against the CPU's."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence

import torch

from ditlab.doctor.machine import Finding

QUERY = (
    "index", "name", "driver_version", "ecc.errors.uncorrected.volatile.total", "clocks_throttle_reasons.active",
    "memory.used", "memory.total",
)  # fmt: skip
"""Fields of a card. Uncorrected errors are counted since the driver was loaded, and no number for a card without ECC;
memory is in MiB."""
THROTTLE_REASONS = {0x8: "hardware slow-down", 0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake"}
"""Reasons for a reduced clock that point to a fault; idleness and the power cap do not."""
BUSY_GIB = 2.0  # in use before a run: a driver takes up to one GiB by itself
MAX_ERROR = 1e-3  # relative: float32 sums of 1024 products are right to 1e-5; TF32, where somebody set it, to 1e-3


def read_gpus() -> list[dict[str, str]]:
    """Fields of `QUERY` of each card of this node. Raises RuntimeError where `nvidia-smi` does not answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stdout", "") or "").strip().splitlines()
        raise RuntimeError(f"nvidia-smi does not answer ({detail[0] if detail else error})") from None
    rows = [line.split(",") for line in output.splitlines() if line.strip()]
    return [dict(zip(QUERY, map(str.strip, row), strict=True)) for row in rows]


def matmul_error(device: str = "cuda") -> float:
    """Largest relative error of a product of two 1024x1024 matrices, against the CPU's in float64."""
    source = torch.Generator().manual_seed(0)
    a, b = (torch.rand(1024, 1024, generator=source) for _ in range(2))  # positive: no sum is near zero
    right = a.double() @ b.double()
    found = (a.to(device) @ b.to(device)).cpu().double()
    return float(((found - right) / right).abs().max())


def judge_gpus(gpus: Sequence[tuple[str, Mapping[str, str]]], errors: Sequence[tuple[str, float]]) -> list[Finding]:
    """Findings on GPUs, each a node and its card of `read_gpus`; `errors`: nodes and their `matmul_error`."""
    found = [finding for node, card in gpus for finding in _card_findings(f"GPU {card['index']} of {node}", card)]
    for node, error in errors:
        if not error < MAX_ERROR:
            remedy = "take the node out: its card computes wrongly"
            found.append(Finding("missing", f"GPU of {node}", f"a matrix product is off by {error:.1e}", remedy))
    nodes: dict[str, set[str]] = {}
    for node, card in gpus:
        nodes.setdefault(card["driver_version"], set()).add(node)
    if len(nodes) > 1:
        where = "; ".join(f"{driver} on {', '.join(sorted(nodes[driver]))}" for driver in sorted(nodes))
        found.append(Finding("note", "GPU driver", where, "install the same driver on every node"))
    if gpus and not found:
        names = ", ".join(sorted({card["name"] for _, card in gpus}))
        right = f"; {len(errors)} computed as the CPU does" if errors else ""
        found.append(Finding("ok", "GPUs", f"{len(gpus)} x {names}, driver {next(iter(nodes))}{right}"))
    return found


def _card_findings(what: str, card: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on one card: memory errors, a reduced clock, memory in use."""
    uncorrected = card["ecc.errors.uncorrected.volatile.total"]
    if uncorrected.isdigit() and int(uncorrected):
        remedy = "take the node out, reset the card or have it replaced (`nvidia-smi -q -d ECC`)"
        yield Finding("missing", what, f"{uncorrected} uncorrected memory errors (ECC)", remedy)
    throttled = card["clocks_throttle_reasons.active"]
    bits = int(throttled, 16) if throttled.startswith("0x") else 0
    if reasons := [text for bit, text in THROTTLE_REASONS.items() if bits & bit]:
        yield Finding("note", what, f"runs slower: {', '.join(reasons)}", "look at its cooling and power")
    used = float(card["memory.used"]) / 1024
    if used > BUSY_GIB:
        total = float(card["memory.total"]) / 1024
        taken = f"{used:.1f} of {total:.0f} GiB are in use already"
        yield Finding("note", what, taken, "end what uses it (`nvidia-smi` lists it)")
