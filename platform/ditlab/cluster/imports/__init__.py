"""Imports of data on a Ray cluster."""
