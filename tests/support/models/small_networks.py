"""Small specs and networks, with changes to the spec by keyword."""

from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.spec import DLMSpec
from ditlab_models.region.spec import RegionSpec
from support.devices.variants import MODELS
from support.models.draws import perturb

REGION = {
    "num_features": 7,
    "num_regions": 12,
    "width": 32,
    "depth": 3,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "time_width": 16,
}


def small_dlm(**changes):
    """A perturbed language model in float64."""
    return perturb(FAMILY.build_network(DLMSpec(**{**MODELS["dlm"], **changes})).double(), std=0.3)


def region_spec(**changes) -> RegionSpec:
    return RegionSpec(**{**REGION, **changes})
