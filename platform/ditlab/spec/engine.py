"""What executes a step, on what, and where its traces go."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from denoisers.contract import Spec
from ditlab.spec.optimisation import Count


class Zero(Spec):
    """DeepSpeed ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054)."""

    stage: Literal[0, 1, 2, 3] = 1
    """What is partitioned over workers: 0 nothing, 1 optimiser state, 2 and gradients, 3 and parameters."""
    offload: Literal["none", "cpu", "nvme"] = "none"
    """Where partitioned state lives. Only `none` is available yet."""

    @model_validator(mode="after")
    def refuse_offload(self) -> "Zero":
        """Anything but `none`."""
        if self.offload != "none":
            raise ValueError(
                f"engine.zero.offload={self.offload} is not available yet; set engine.zero.offload to none."
            )
        return self


class DeepSpeedEngine(Spec):
    """DeepSpeed, on CPU over gloo and on CUDA over NCCL."""

    kind: Literal["deepspeed"] = "deepspeed"
    """DeepSpeed ZeRO."""
    zero: Zero = Zero()
    """Partitioning of training state."""
    activation_checkpointing: bool = False
    """Recompute activations block by block in the backward pass: less memory, about a third more compute."""
    compile: bool = False
    """torch.compile the network (needs a C++ compiler; the first step takes a minute or so)."""


class ElasticWorkers(Spec):
    """A range of workers, grown and shrunk with the cluster."""

    min: Count
    """Fewest workers to go on with."""
    max: Count
    """Most workers to use."""

    @model_validator(mode="after")
    def refuse(self) -> "ElasticWorkers":
        """Always: named here so that the message can say so."""
        raise ValueError(
            f"resources.workers={{min: {self.min}, max: {self.max}}} (elastic) is not available yet; "
            f"set resources.workers to a number, such as {self.min}."
        )


class Resources(Spec):
    """What a run takes of the machine or cluster."""

    workers: Count | ElasticWorkers = 1
    """Training processes, each with its share of every batch."""
    gpus_per_worker: Annotated[int, Field(ge=0, le=1)] = 0
    """GPUs of each worker: 1 trains on CUDA, 0 on the CPU."""
    cpus_per_worker: Count | None = None
    """CPU cores, and threads, of each worker. Null: this machine's cores divided by the workers."""

    @property
    def num_workers(self) -> int:
        """`workers`, which is a number for as long as ranges are refused."""
        assert isinstance(self.workers, int)
        return self.workers


class Checkpoint(Spec):
    """Saving a run's state."""

    every: Count | None = 1000
    """Steps between checkpoints; the last step is saved always. Null: the last step only."""
    keep: Count = 3
    """Newest checkpoints kept."""
    storage: str | None = None
    """Folder for checkpoints, by run; null is the run's own folder. URIs (s3://...) are not available yet."""

    @model_validator(mode="after")
    def refuse_uri(self) -> "Checkpoint":
        """A folder only."""
        if self.storage and "://" in self.storage:
            raise ValueError(
                f"checkpoint.storage={self.storage}: storage by URI is not available yet; name a folder, or null."
            )
        return self


class Evaluation(Spec):
    """Held-out figures and sample grids during a run."""

    every: Count | None = 1000
    """Steps between evaluations; the last step is evaluated always. Null: never."""
    samples: Annotated[int, Field(ge=0, le=10**6)] = 64
    """Samples drawn for the grid at each evaluation; 0 for none."""
    limit: Count = 2048
    """Held-out samples used, the first ones in a fixed order."""


class Tracking(Spec):
    """MLflow."""

    experiment: Annotated[str, Field(min_length=1)] = "ditlab"
    """MLflow experiment that the run appears under."""
    uri: str | None = None
    """MLflow tracking server or database (http://host:5000, sqlite:///file.db). Null: a database in DITLAB_HOME."""
    every: Count = 1
    """Steps between logged training metrics."""
    system_metrics: bool = True
    """Log CPU, memory, disk, network and GPU use of every node."""
