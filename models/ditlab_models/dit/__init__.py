"""Diffusion transformer on images, trained by flow matching (see README.md)."""
