"""Optimisation of a run: optimiser, learning-rate schedule, clipping, average, length."""
