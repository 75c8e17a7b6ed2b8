"""Add-on: further kinds of `schedule`, the learning rate over time."""
