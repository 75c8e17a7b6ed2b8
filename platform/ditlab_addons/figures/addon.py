"""Figures of the field, the command `data statistics` and the harness' model, described without
their code.
"""

from ditlab.parts import Parts

ADDON = Parts(
    subcommands={"data statistics": "ditlab_addons.figures.commands:statistics"},
    results="ditlab_addons.figures.commands:RESULTS",
    functions={"harness_model": "ditlab_addons.figures.harness:harness_model"},
    quality_figures={
        "evaluation.features": "ditlab_addons.figures.images.published:PublishedFigures",
        "evaluation.scorer": "ditlab_addons.figures.networks.scorer:CausalScorer",
    },
)
