"""The metrics' reference: names from the code, meanings from here; a name without a meaning ends
the build.
"""

import re
from typing import Any

from ditlab.quality.eligibility import (
    AGREEMENT,
    AGREEMENT_CHANCE,
    AGREEMENT_REAL,
    ENCODER_DISTANCES,
    QUALITY_METRICS,
)
from ditlab.spec.files import build_experiment

TRAINING = {
    "loss": "the weighted sum of the components below; what is minimised",
    "grad_norm": "norm of the whole gradient, before clipping",
    "lr": "learning rate of the step",
    "samples_per_second": "samples of the global batch a second of wall time",
    "data_wait": (
        "seconds a step that the first worker waited for its batch, averaged since the last point"
    ),
}
TIMES = {
    "time/data": "seconds a step in which a worker waited for its batch",
    "time/forward": "preparing the batch on the device, network and loss",
    "time/backward": "gradients, without their reduction",
    "time/reduce": (
        "sums over workers, ZeRO-3's gathering of weights, and waiting for slower workers in both"
    ),
    "time/update": "norm, clipping, optimiser, moving average",
    "time/checkpoint": (
        "copying the state, and waiting for the checkpoint before; the last one's whole time"
    ),
    "time/evaluation": "evaluations, their samples, and waiting for a sweep's scheduler",
    "time/log": "everything else: metrics, progress, files",
    "time/steps": "steps of which these are the means: those since the last point",
    "time/slowest": (
        "times the others' median that the slowest worker's forward and backward passes took"
    ),
    "perf/mfu": (
        "model FLOPs utilisation: operations of a step, none twice, over those of matrix "
        "products in its time"
    ),
    "perf/hfu": "the same with the operations that activation checkpointing repeats",
    "perf/samples_per_second": "samples a second a worker, without evaluations and checkpoints",
    "perf/tokens_per_second": "tokens of text a second a worker",
    "perf/memory": "largest peak of a worker, bytes: of tensors on a GPU, of the process on a CPU",
}
MEANINGS = {
    "velocity": "squared error of the velocity, per value",
    "direction": "1 - cos(prediction, target), an image being one vector",
    "masked": "squared error over all features of masked regions, a mean over windows",
    "accessibility": "the same over the last feature alone",
    "spread": (
        "how far the predictions of a window's masked regions lie apart; 0: all of them are "
        "the same"
    ),
    "mse": "squared error over all masked entries",
    "r2": "1 - squared error / variance, over all masked entries; rank runs by it",
    "pearson": "Pearson's correlation, over all masked entries",
    "frequency": "squared error of the velocity's 8x8 DCT in YCbCr, weighed by JPEG's table",
    "alignment": "1 - cos(tokens behind one block, features of a frozen image encoder)",
    "score_entropy": "the score entropy of the drawn noise level, nats a token",
    "bound": "upper bound of the negative log-likelihood, nats a token; rank runs by it",
    "unweighted": "the score entropy without the weight of its noise level",
    "perplexity": "exp(bound)",
    "bits_per_token": "the bound in bits a token",
    "bits_per_byte": "the bound in bits a byte of text; compare tokenisers by it",
}
QUALITY = {
    "quality/frechet": (
        "Frechet distance between features of samples and of real images; lower is better"
    ),
    "quality/kernel": "kernel distance between the same features, unbiased; lower is better",
    "quality/kernel_error": "its standard error",
    "quality/nearest": "median distance of samples to the nearest training image",
    "quality/nearest_held_out": "the same for held-out images",
    "quality/frechet_dino": "Frechet distance on features of the image encoder",
    "quality/kernel_dino": "kernel distance on them",
    "quality/kernel_dino_error": "its standard error",
    AGREEMENT: "share of samples that show every class that their caption names; higher is better",
    AGREEMENT_REAL: "the same of held-out images",
    AGREEMENT_CHANCE: "the same of samples that ignore captions",
}
OTHERS = {
    "held_out/...": (
        "what `eval/...` is, of all held-out samples, where these are more than "
        "`evaluation.limit`: by `ditlab evaluate`"
    ),
    "eval/excess_loss": "held-out loss above the least possible one, on [data with a known optimum]"
    "(../data.md#data-with-a-known-optimum)",
    "assessed/...": (
        "the family's own measurements by `ditlab evaluate`, beside baselines: see the "
        "families' guides"
    ),
    "best/...": "of a sweep: the best value so far, by number of trials",
    "cost/evaluations": (
        "of a configuration of a sweep over samples: network evaluations a sample, a guided "
        "one twice"
    ),
    "cost/seconds": "of such a configuration: seconds a sample",
    "pbt/...": "of a trial of a population: the values it trains with, by step",
    "system/...": (
        "load of the machine (`tracking.system_metrics`): processor, memory, disk, network, GPUs"
    ),
}
QUARTERS = ("first", "second", "third", "last")
FAMILIES = ("dit", "unet", "region", "dlm", "pixelhdm")


def metrics_page() -> str:
    """Return the page: tables of names and meanings."""
    lines = [
        "# Metrics",
        "",
        "Names as MLflow and the journal have them; those of a family come from its loss's code.",
        "",
    ]
    lines += [
        "## In training, by step",
        "",
        *_rows({f"train/{name}": text for name, text in TRAINING.items()}),
    ]
    lines += [
        "",
        (
            "`train/COMPONENT` is each component of the family's loss whose weight is not 0, "
            "unweighted."
        ),
        "",
    ]
    lines += ["## Time, about once a second", "", *_rows(TIMES)]
    lines += [
        "",
        (
            "Means over the steps since the last point, and over workers: [where time "
            "goes](../performance.md)."
        ),
        "",
    ]
    for family in FAMILIES:
        components, metrics = _names(family)
        lines += [
            f"## {family}",
            "",
            *_rows({f"train/{name}": _meaning(name) for name in components}),
        ]
        lines += _rows({f"eval/{name}": _meaning(name) for name in metrics})[2:]
        lines += [""]
    lines += ["## Sample quality", "", "[How they are measured](../quality.md).", ""]
    names = (*QUALITY_METRICS, *ENCODER_DISTANCES, AGREEMENT, AGREEMENT_REAL, AGREEMENT_CHANCE)
    lines += _rows({name: QUALITY[name] for name in names})
    return "\n".join([*lines, "", "## Others", "", *_rows(OTHERS), ""])


def _names(family: str) -> tuple[list[str], list[str]]:
    """Names of a family's components and held-out metrics, as its objective gives them."""
    mapping = {
        "name": family,
        "model": {"family": family},
        "training": {"steps": 1},
        "batch": {"size": 1},
    }
    experiment = build_experiment(mapping, family)
    objective: Any = experiment.family.build_objective(experiment.objective, experiment.model, None)
    return list(objective.weights), list(objective.metric_names())


def _meaning(name: str) -> str:
    if quarter := re.fullmatch(r"(?P<name>\w+)_t(?P<number>[0-3])", name):
        return f"`{quarter['name']}` in the {QUARTERS[int(quarter['number'])]} quarter of the times"
    if name not in MEANINGS:
        raise KeyError(f"metric {name!r} has no meaning in {__file__}; add it.")
    return MEANINGS[name]


def _rows(names: dict[str, str]) -> list[str]:
    return [
        "| metric | |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in names.items()),
    ]
