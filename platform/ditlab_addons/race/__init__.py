"""Add-on: races over seeds, and sweeps over the samples of a trained run."""
