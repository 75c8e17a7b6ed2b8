"""Devices that runs are planned for: memory, peak rates, bandwidths.

Peak rates are the makers' for dense matrices (without structured sparsity, whose figure is twice as
large), products of bfloat16 accumulated in float32. Memory is what `nvidia-smi` prints as a card's
total, with ECC where it is on as delivered. Links are one way, half of the sum of both that data
sheets give: NVLink where all GPUs of a machine have it, else PCIe (bridges of A40, H100 PCIe and
RTX 3090 join two cards only).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ditlab.errors import UserError, nearest
from ditlab.spec.values import num_bytes

TERA = 10**12
GIGA = 10**9
MIB = 2**20
CPU = "cpu"
DEFAULT = "H100"
"""GPU that is planned for where neither the command nor this machine names one."""
CPU_FLOPS = 50 * GIGA
CPU_BANDWIDTH = 10 * GIGA
"""Rates of a CPU core's product of float32 matrices, and of a machine's memory, where nothing was
measured: those of a server core of 2020 with AVX2 at 3 GHz."""


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


# MiB, TFLOP/s in bfloat16 and float32, GB/s of its memory, to other GPUs and to the host; behind
# each row NVIDIA's document that rates and bandwidths are from.
GPUS = {
    name: Device(name, mib * MIB, bf16 * TERA, fp32 * TERA, memory * GIGA, link * GIGA, host * GIGA)
    for name, mib, bf16, fp32, memory, link, host in (
        ("A10", 23_028, 125, 31.2, 600, 32, 32),  # A10 data sheet
        ("A40", 46_068, 149.7, 37.4, 696, 32, 32),  # A40 data sheet
        ("A100-40GB", 40_960, 312, 19.5, 1_555, 300, 32),  # A100 data sheet (1758950), SXM
        ("A100", 81_920, 312, 19.5, 2_039, 300, 32),  # A100 data sheet (1758950), 80 GB SXM
        ("L4", 23_034, 121, 30.3, 300, 32, 32),  # L4 data sheet; Ada GPU architecture white paper
        ("L40S", 46_068, 362.05, 91.6, 864, 32, 32),  # L40S data sheet
        # Ampere GA102 GPU architecture white paper, appendix A
        ("RTX3090", 24_576, 71, 35.6, 936, 32, 32),
        # Ada GPU architecture white paper, appendix A
        ("RTX4090", 24_564, 165.2, 82.6, 1_008, 32, 32),
        ("H100-PCIe", 81_559, 756.5, 51, 2_000, 64, 64),  # H100 data sheet, PCIe
        ("H100", 81_559, 989.5, 67, 3_350, 450, 64),  # H100 data sheet, SXM
        ("H200", 143_771, 989.5, 67, 4_800, 450, 64),  # H200 data sheet, SXM
        # GH200 Grace Hopper superchip data sheet (3773000), 96 GB
        ("GH200", 97_871, 990, 67, 4_000, 450, 450),
        ("B200", 183_359, 2_250, 75, 7_700, 900, 64),  # Blackwell data sheet, HGX B200
    )
}


def find_gpu(name: str) -> Device:
    """Return the GPU of a name, in upper or lower case, `NVIDIA` before it or not. Raises UserError
    for another.
    """
    wanted = name.strip().lower().removeprefix("nvidia ").replace(" ", "").replace("_", "-")
    found = {each.lower(): gpu for each, gpu in GPUS.items()}
    if wanted not in found:
        hint = nearest(wanted, [*found, CPU])
        end = "" if hint.endswith("?") else "."
        raise UserError(
            f"--gpu={name} is no known GPU; {hint}{end} For another give the nearest, with "
            "--gpu-memory."
        )
    return found[wanted]


def known_gpu(name: str) -> Device | None:
    """Return the GPU of the name that CUDA has for it, such as `NVIDIA A100-SXM4-40GB`; None for
    one without a row.
    """
    words = name.lower().replace("-", " ").split()
    words += [first + second for first, second in pairwise(words)]  # RTX 4090
    found = [gpu for gpu in GPUS.values() if set(gpu.name.lower().split("-")) <= {*words}]
    return max(found, key=lambda gpu: len(gpu.name), default=None)


def device_memory(text: str) -> int:
    """Return the bytes of `--gpu-memory`. Raises UserError for no size, and for one that no device
    has.
    """
    try:
        size = num_bytes(text)
    except ValueError:
        size = 0
    if not 2**28 <= size <= 2**41:
        raise UserError(
            f"--gpu-memory={text} is no memory of a GPU; give 256MiB to 2TiB, such as 80GiB, "
            "for one."
        )
    return size
