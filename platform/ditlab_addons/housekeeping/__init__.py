"""Add-on: what is deleted, and what MLflow missed is sent."""
