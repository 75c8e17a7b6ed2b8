"""Add-on: sweeps over the samples of a trained run."""
