"""Objects that commands of this folder print under `--json`."""

from typing import Any

from typing_extensions import TypedDict

from ditlab.cli.output_types import Device, Numbers


class SettingOutput(TypedDict):
    stage: int
    offload: str
    offload_parameters: str
    activation_checkpointing: bool
    per_gpu_bytes: int
    margin_bytes: int
    host_bytes: int
    checkpoint_copy_bytes: int
    peak: str
    step_seconds: float
    micro: int
    largest_micro: int
    fits: bool
    passes: dict[str, int]
    update: dict[str, int]
    evaluation: dict[str, int]
    flops: Numbers
    seconds: Numbers


class PlanOutput(TypedDict):
    """`ditlab plan`; `fits`, `per_gpu_bytes` and `step_seconds` are of the spec as it is, times and
    hours of the recommended setting."""

    fits: bool
    per_gpu_bytes: int
    step_seconds: float
    gpu: str
    gpus: int
    gpu_memory: int
    rates: str
    own: SettingOutput
    recommended: SettingOutput | None
    settings: list[SettingOutput]
    samples_per_second: float
    run_seconds: float | None
    """Duration of the run, without evaluations and saves; null where its steps are unknown."""
    gpu_hours: float | None
    """Hours of all workers."""
    device: Device
    device_hours: float | None
    """Hours of GPUs or cores, as a budget counts them."""
    cost: float | None
    checkpoints_kept: int
    left_out: list[str]
    parameters: int
    frozen: int
    why: str
    steps: int | None
    checkpoint_bytes: int
    snapshot_bytes: int
    snapshots: int | None
    data_bytes: int | None
    encoder_flops: float
    optimizer_flops: float
    changes: dict[str, Any]
    """Fields in which the recommended setting differs from the spec."""


class ProfileOutput(TypedDict):
    name: str
    device: str
    num_steps: int
    num_passes: int
    step_seconds: float
    phases: Numbers
    modules: list[dict[str, Any]]
    operators: list[dict[str, Any]]
    trace: str


RESULTS = {
    "plan": PlanOutput,
    "profile": ProfileOutput,
}
"""Type of the object of each command."""
