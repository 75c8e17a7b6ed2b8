"""Add-on: what a store holds."""
