"""Add-on: requests to a run in training."""
