"""Discrete diffusion language model over tokens, uniform process (see README.md)."""
