"""Add-on: trackers beside MLflow."""
