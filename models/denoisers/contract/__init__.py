"""The interface between a model family and the platform. Imports no torch at run time.

A family's `family.py` joins its specs and builds its parts:

    class DiTFamily(Family[DiTSpec, DiTObjectiveSpec, DiTSamplingSpec]): ...

    FAMILY = DiTFamily()

Shapes in this package leave out the batch dimension unless they say otherwise.
"""

from denoisers.contract.evaluator import EvaluationResult, Evaluator
from denoisers.contract.fields import ANY, BatchField, FieldKnobs
from denoisers.contract.loss_component import LossComponent
from denoisers.contract.model_family import Family
from denoisers.contract.network import Network
from denoisers.contract.noise import NoiseSource
from denoisers.contract.objective import Objective, PreparingObjective, RetiringObjective
from denoisers.contract.requests import DEFAULT_REQUEST, Prompt, SampleRequest
from denoisers.contract.roles import Role, RoledNetwork
from denoisers.contract.rows import RealRows, RowSet
from denoisers.contract.sampler import (
    CompletingSampler,
    Picture,
    PicturingSampler,
    RowConditionedSampler,
    Sampler,
    Samples,
)
from denoisers.contract.spec import ModelSpec, ObjectiveSpec, PositiveInt, SamplingSpec, Spec, Weight
from denoisers.contract.text import TextCodec
from denoisers.contract.time_density import TimeDensity

__all__ = [
    "ANY",
    "DEFAULT_REQUEST",
    "BatchField",
    "CompletingSampler",
    "EvaluationResult",
    "Evaluator",
    "Family",
    "FieldKnobs",
    "LossComponent",
    "ModelSpec",
    "Network",
    "NoiseSource",
    "Objective",
    "ObjectiveSpec",
    "Picture",
    "PicturingSampler",
    "PositiveInt",
    "PreparingObjective",
    "Prompt",
    "RealRows",
    "RetiringObjective",
    "Role",
    "RoledNetwork",
    "RowConditionedSampler",
    "RowSet",
    "SampleRequest",
    "Sampler",
    "Samples",
    "SamplingSpec",
    "Spec",
    "TextCodec",
    "TimeDensity",
    "Weight",
]
