"""Formats of published weights, a file each, which defines `FORMAT`. A file put here is known, and nothing lists it.

The layouts of DiT and SiT, as facebookresearch and diffusers write them, have their place in a file `dit.py`.
"""
