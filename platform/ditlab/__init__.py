"""DiTLab: one typed experiment spec for diffusion models, on a laptop and on a GPU cluster."""

__version__ = "0.1.0"
