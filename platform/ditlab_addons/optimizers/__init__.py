"""Add-on: further optimisers, and a further learning rate over time."""
