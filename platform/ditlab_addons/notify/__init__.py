"""Add-on: messages to people about the events of runs and sweeps."""
