"""Add-on: checks of a machine or a cluster, before it trains."""
