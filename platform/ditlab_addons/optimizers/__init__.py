"""Add-on: a further optimiser, and a further learning rate over time."""
