"""Dual-path diffusion of images from text, in pixel space (see README.md)."""
