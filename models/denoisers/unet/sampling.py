"""The U-Net's sampler: the shared integration of the velocity, for the U-Net's images and classes."""

from denoisers.processes.flow_sampling import FlowSampler
from denoisers.unet.spec import UNetSamplingSpec, UNetSpec


class UNetSampler(FlowSampler):
    """Images from noise, conditioned on a class where the model has classes."""

    def __init__(self, spec: UNetSamplingSpec, model: UNetSpec) -> None:
        super().__init__(spec, model.image_shape, model.num_classes)
