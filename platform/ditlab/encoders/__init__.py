"""Frozen encoders of captions and images, and autoencoders: the only package that imports
transformers and diffusers, at their first use."""
