"""Frozen encoders of captions and images: the only package that imports transformers, at their first use."""
