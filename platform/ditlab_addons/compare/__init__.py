"""Add-on: a page that compares runs."""
