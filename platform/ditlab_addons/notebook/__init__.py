"""Add-on: what notebooks show."""
