"""Add-on: races over seeds, and what else compares settings by seeds."""
