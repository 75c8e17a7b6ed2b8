"""DiT's sampler: the shared integration of the velocity, for DiT's images and classes."""

from denoisers.dit.spec import DiTSamplingSpec, DiTSpec
from denoisers.processes.flow_sampling import FlowSampler


class DiTSampler(FlowSampler):
    """Images from noise, conditioned on a class where the model has classes."""

    def __init__(self, spec: DiTSamplingSpec, model: DiTSpec) -> None:
        super().__init__(spec, model.image_shape, model.num_classes)
