"""Add-on: features of frozen encoders as columns of a store."""
