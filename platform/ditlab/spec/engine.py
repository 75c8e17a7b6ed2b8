"""Engine, checkpoints, evaluation and tracking of a run."""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from ditlab.spec.encoders import Scorer, Sha256
from ditlab.spec.optimization import Count
from ditlab.spec.uris import refuse_storage
from ditlab.spec.values import Nonempty, format_value
from ditlab_models.contract import PositiveFloat, Share, Spec

LARGEST_BUCKET = 500_000_000
"""Most gradient values that workers reduce at once; fewer where a network has fewer parameters."""
_Storage = Annotated[
    str, Field(min_length=1), AfterValidator(partial(refuse_storage, "checkpoint.storage"))
]
_GridSamples = Annotated[int, Field(ge=0, le=10**6)]
_QualitySamples = Annotated[int, Field(ge=0, le=50_000)]


def _zero_for_null(value: Any) -> Any:
    return 0 if value is None else value  # as null switches the other fields of the section off


GridSamples = Annotated[
    _GridSamples, BeforeValidator(_zero_for_null, json_schema_input_type=_GridSamples | None)
]
QualitySamples = Annotated[
    _QualitySamples, BeforeValidator(_zero_for_null, json_schema_input_type=_QualitySamples | None)
]


class Zero(Spec):
    """DeepSpeed ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054)."""

    stage: Literal[0, 1, 2, 3] = 1
    """State partitioned over workers: 0 nothing, 1 optimiser state, 2 and gradients, 3 and
    parameters.
    """
    offload: Literal["none", "cpu"] = "none"
    """Storage of optimiser state and float32 weights: the workers' device or CPU memory (stages 1
    to 3), where the update then runs, too."""
    offload_parameters: Literal["none", "cpu"] = "none"
    """Storage of partitioned parameters between their uses (stage 3 only)."""

    @model_validator(mode="after")
    def _offload_fits_stage(self) -> "Zero":
        if self.offload == "cpu" and self.stage == 0:
            raise ValueError(
                "engine.zero.offload=cpu moves partitioned optimiser state, and "
                "engine.zero.stage=0 has none; set engine.zero.stage to 1, 2 or 3."
            )
        if self.offload_parameters != "none" and self.stage != 3:
            raise ValueError(
                f"engine.zero.offload_parameters={self.offload_parameters} needs partitioned "
                f"parameters, and engine.zero.stage={self.stage} has none; set "
                "engine.zero.stage to 3."
            )
        return self


class DeepSpeedEngine(Spec):
    """DeepSpeed, on CPU over gloo and on CUDA over NCCL."""

    kind: Literal["deepspeed"] = "deepspeed"
    """DeepSpeed ZeRO."""
    zero: Zero = Zero()
    """Partitioning of training state."""
    activation_checkpointing: bool = False
    """Recompute activations block by block in the backward pass: less memory, about a third more
    compute.
    """
    activation_offload: Literal["none", "cpu"] = "none"
    """Storage of activations between forward and backward pass: the workers' device, or the host's
    memory, which takes two copies a block. With `activation_checkpointing`, blocks keep their
    inputs alone."""
    compile: bool | Literal["auto"] = False
    """torch.compile the network's blocks, one graph for each kind of block: faster steps that
    differ from eager ones by rounding, after a first step of up to a minute; needs a C++ compiler.
    `auto` compiles where it pays, by this spec, the device's type and torch's version alone; a run
    records what that came to."""

    @field_validator("compile", mode="before")
    @classmethod
    def _known_compile(cls, value: Any) -> Any:
        if isinstance(value, bool) or value == "auto":
            return value
        raise ValueError(f"engine.compile={format_value(value)} must be true, false or auto.")


class Checkpoint(Spec):
    """Saving a run's state."""

    every: Count | None = 1000
    """Steps between checkpoints; the last step is saved always. Null: the last step only."""
    keep: Count = 3
    """Newest checkpoints kept."""
    keep_every: Count | None = None
    """Beside the newest, the first checkpoint of every stretch of so many steps is kept for good,
    from which `ditlab replay` rebuilds the steps after it: with 10000 that of step 10000, of 20000,
    and so on. Null: none."""
    storage: _Storage | None = None
    """Folder or store of checkpoints, with a folder for each run; null is the run's own folder. A
    folder's path, which all nodes must share (in a file, from that file's folder on), or a URI:
    s3://bucket/prefix?region=eu-west-1 (another server with &endpoint_override=host:port and
    &scheme=http), gs://bucket/prefix, abfs://container@account.dfs.core.windows.net/prefix,
    hdfs://host:port/folder, or any other scheme that an installed fsspec library opens. Keys and
    passwords come from the environment (AWS_ACCESS_KEY_ID and the like); a URI that holds one is
    refused."""
    write: Literal["background", "blocking"] = "background"
    """`background`: a step waits for a copy of the state in host memory (once more each worker's
    share of weights, moments and average), which is written beside the next steps. `blocking`:
    steps wait until all is on disk, and no such memory is taken."""


class EvaluatorResources(Spec):
    """Resources of an asynchronous evaluation, apart from those of the workers."""

    cpus: Count | None = None
    """CPU cores that an evaluation reserves on the cluster, and its threads. Null: none are
    reserved, and it has the threads of a worker of the run. Its priority is lower than theirs (nice
    10). On the CPU, metrics have the bits of an evaluation within the training where the threads
    are as many."""
    gpus: Share = 0.0
    """GPUs, or the part of one, beside those of the workers; 0 evaluates on the CPU."""
    custom: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Resources of Ray's by your own names, such as {cheap: 1}, which the nodes that may evaluate
    were started with (`ray start --resources='{"cheap": 4}'`)."""

    def on_node(self) -> dict[str, float]:
        """Resources that a node must have, by Ray's names."""
        return {"CPU": float(self.cpus or 0), "GPU": self.gpus, **self.custom}

    def __str__(self) -> str:
        """Resources in a sentence: `{cpus: 2, gpus: 1, cheap: 1}`."""
        named = {"cpus": self.cpus or 0, "gpus": self.gpus, **self.custom}
        return f"{{{', '.join(f'{name}: {number:g}' for name, number in named.items() if number)}}}"


class ImageFeatures(Spec):
    """Published network on whose features the samples of `evaluation.quality` are compared with
    real images.
    """

    kind: Literal["inception", "dinov2", "clip"]
    """Network, and figures: the Inception v3 of FID (FID, KID, precision, recall, density,
    coverage), DINOv2 (FD-DINOv2, MMD), or CLIP (CMMD, and CLIP score where samples have captions).
    """
    weights: Nonempty
    """File of the weights (inception: pt_inception-2015-12-05-6726825d.pth, or its tensors as
    safetensors), or folder as transformers saves it; a relative one may lie in
    DITLAB_HOME/caches/features. Nothing is downloaded."""
    sha256: Sha256
    """SHA-256 of the file of weights, as `sha256sum FILE` prints it (of a folder: of its
    model.safetensors; of several shards: that of the lines that `sha256sum *.safetensors` prints).
    Other weights are refused."""
    reference: Nonempty | None = None
    """An .npz file as ADM writes them, in place of the run's training images: statistics of these
    features (`mu`, `sigma`) for the Frechet distance, images (`arr_0`, uint8 NHWC) for all figures,
    or both. Null: training images."""

    @field_validator("weights")
    @classmethod
    def _is_local(cls, weights: str) -> str:
        if "://" in weights:
            raise ValueError(
                f"evaluation.features: weights={weights} is no file or folder of this machine, "
                "and nothing is fetched for figures; fetch it, and name its path."
            )
        return weights


class Evaluation(Spec):
    """Held-out figures and sample grids during a run."""

    every: Count | None = 1000
    """Steps between evaluations; the last step is evaluated always. Null: never."""
    samples: GridSamples = 64
    """Samples drawn for the grid at each evaluation; 0 or null for none."""
    limit: Count = 2048
    """Held-out samples used, the first ones in a fixed order."""
    quality: QualitySamples = 0
    """Samples drawn for the quality figures at each evaluation (`quality/...`: distances to the
    run's own real images, on features of a small classifier that DiTLab trains on them once; of
    text, entropy, distinct n-grams and perplexity); at least 100, 0 or null for none."""
    mode: Literal["inline", "async"] = "inline"
    """`inline`: the training workers evaluate, and train no step meanwhile. `async`: the run saves
    a checkpoint at every step that is evaluated, step 0 included, and another process measures it
    while steps go on. Of checkpoints that wait, the newest is measured and the older ones are
    skipped, which the run says; the last one always is."""
    resources: EvaluatorResources = EvaluatorResources()
    """Resources of that process; used with `mode: async`."""
    features: tuple[ImageFeatures, ...] = Field(default=(), strict=False)
    """Published networks for the figures of the field, beside those of the classifier, one of a
    kind: FID and others of `evaluation.quality` samples."""
    scorer: Scorer | None = None
    """Language model under which `quality` measures the perplexity of drawn text
    (`quality/generative_perplexity`), beside its entropy and distinct n-grams; null: these alone.
    """

    @field_validator("features")
    @classmethod
    def _one_of_a_kind(cls, features: tuple[ImageFeatures, ...]) -> tuple[ImageFeatures, ...]:
        kinds = [each.kind for each in features]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise ValueError(
                    f"evaluation.features names {kind} {kinds.count(kind)} times; name each "
                    "kind once."
                )
        return features

    @field_validator("quality")
    @classmethod
    def _enough_for_quality(cls, quality: int) -> int:
        if 0 < quality < 100:  # fewer samples than features give figures of chance
            raise ValueError(
                f"evaluation.quality={quality} samples are too few; set it to at least 100, or "
                "to 0."
            )
        return quality


class Tracking(Spec):
    """MLflow."""

    experiment: Nonempty = "ditlab"
    """MLflow experiment that the run appears under."""
    uri: str | None = None
    """MLflow tracking server or database (http://host:5000, sqlite:///file.db). Null:
    MLFLOW_TRACKING_URI where that is set, else a database in DITLAB_HOME."""
    every: Count = 1
    """Steps between logged training metrics."""
    budget: Count | None = 10_000
    """How many points of one metric reach MLflow over a million steps at most: the first tenth all,
    then ever fewer. Each doubling of the steps adds half a tenth; the run's journal keeps every
    point. Null: all."""
    system_metrics: bool = True
    """Log CPU, memory, disk, network and GPU use of every node."""
    price: Annotated[float, Field(gt=0, lt=1e9)] | None = None
    """Price of an hour of a GPU, or of a CPU core where the run takes no GPU, in your currency;
    null: costs are told in hours alone."""
    report: bool = True
    """Write the run's page, `report.html`, into its folder when it ends, and log it as an
    artifact.
    """

    @field_validator("experiment")
    @classmethod
    def _is_printable(cls, experiment: str) -> str:
        if any(ord(character) < 32 or ord(character) == 127 for character in experiment):
            raise ValueError(
                f"tracking.experiment={format_value(experiment)} holds a control character; "
                "rename it."
            )
        return experiment
