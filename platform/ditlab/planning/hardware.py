"""Devices that runs are planned for: memory, peak rates, bandwidths.

Peak rates are those of the makers' data sheets for dense matrices (without structured sparsity, whose figure is twice
as large), products of bfloat16 accumulated in float32; memory is what `nvidia-smi` reports; link is what one GPU sends
at once to others of its machine (NVLink, else PCIe). Sources: NVIDIA data sheets A100 (DS-09992), A10, A40, L4, L40S,
H100 (2289), H200, GH200, DGX B200, and the Ada and Ampere GeForce white papers.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from ditlab.errors import UserError
from ditlab.spec.sizes import num_bytes

TERA, GIGA, MIB = 10**12, 10**9, 2**20


@dataclass(frozen=True)
class Device:
    """A kind of GPU, or the CPU of this machine."""

    name: str
    memory: int
    """Bytes."""
    bf16: float
    """Peak FLOP/s of matrix products in bfloat16, and float16."""
    fp32: float
    """Peak FLOP/s in float32."""
    bandwidth: float
    """Bytes a second of its memory."""
    link: float
    """Bytes a second to other devices of its machine."""
    host_link: float
    """Bytes a second to the host."""

    @property
    def is_gpu(self) -> bool:
        return self.name != CPU

    def peak(self, precision: str) -> float:
        """Return the peak rate of a training precision."""
        return self.fp32 if precision == "fp32" else self.bf16


CPU = "cpu"


def _gpu(name: str, mib: int, bf16: float, fp32: float, bandwidth: float, link: float, host: float) -> Device:
    return Device(name, mib * MIB, bf16 * TERA, fp32 * TERA, bandwidth * GIGA, link * GIGA, host * GIGA)


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("A10", 23_028, 125, 31.2, 600, 32, 32),
        _gpu("A40", 46_068, 149.7, 37.4, 696, 56, 32),
        _gpu("A100-40GB", 40_960, 312, 19.5, 1_555, 300, 32),
        _gpu("A100", 81_920, 312, 19.5, 2_039, 300, 32),
        _gpu("L4", 23_034, 121, 30.3, 300, 32, 32),
        _gpu("L40S", 46_068, 362, 91.6, 864, 32, 32),
        _gpu("RTX3090", 24_576, 71, 35.6, 936, 32, 32),
        _gpu("RTX4090", 24_564, 165.2, 82.6, 1_008, 32, 32),
        _gpu("H100-PCIe", 81_559, 756, 51.2, 2_000, 64, 64),
        _gpu("H100", 81_559, 989.4, 66.9, 3_350, 450, 64),
        _gpu("H200", 143_771, 989.4, 66.9, 4_800, 450, 64),
        _gpu("GH200", 97_871, 989.4, 66.9, 4_000, 450, 450),
        _gpu("B200", 183_359, 2_250, 75, 7_700, 900, 64),
    )
}
DEFAULT = "H100"
"""GPU that is planned for where neither the command nor this machine names one."""
LEAST, MOST = 2**28, 2**41
"""Bytes of memory that a device may have: 256 MiB to 2 TiB."""
CPU_FLOPS, CPU_BANDWIDTH = 50 * GIGA, 10 * GIGA
"""Rates of a CPU core's product of float32 matrices, and of a machine's memory, where nothing was measured: those of a
server core of 2020 with AVX2 at 3 GHz."""


def find_gpu(name: str) -> Device:
    """Return the GPU of a name, in upper or lower case, `NVIDIA` before it or not. Raises UserError for another."""
    wanted = name.strip().lower().removeprefix("nvidia ").replace(" ", "").replace("_", "-")
    found = {each.lower(): gpu for each, gpu in GPUS.items()}
    if wanted in found:
        return found[wanted]
    close = difflib.get_close_matches(wanted, [*found, CPU], n=1, cutoff=0.5)
    hint = (
        f"did you mean {found[close[0]].name if close[0] in found else CPU}?" if close else f"known: {', '.join(GPUS)}."
    )
    raise UserError(f"--gpu={name} is no known GPU; {hint} For another one give the nearest, with --gpu-memory.")


def cpu_device(memory: int, cores: int) -> Device:
    """Return a worker's share of a machine without GPUs: so many bytes and cores."""
    rate = CPU_FLOPS * cores
    return Device(CPU, memory, rate, rate, CPU_BANDWIDTH, CPU_BANDWIDTH, CPU_BANDWIDTH)


def device_memory(text: str) -> int:
    """Return the bytes of `--gpu-memory`. Raises UserError for no size, and for one that no device has."""
    try:
        size = num_bytes(text)
    except ValueError:
        raise UserError(f"--gpu-memory={text} is no size; write a number with its unit, such as 80GiB.") from None
    if not LEAST <= size <= MOST:
        raise UserError(
            f"--gpu-memory={text} is no memory that a device has; give 256MiB to 2TiB, such as 80GiB, for one GPU."
        )
    return size
