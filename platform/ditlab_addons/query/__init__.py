"""Add-on: questions in SQL about the runs of a home."""
