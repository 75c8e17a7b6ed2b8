"""Add-on: commented specs to begin with, made of the experiments that come with DiTLab."""
