"""Add-on: the page of a run, served live while it trains."""
