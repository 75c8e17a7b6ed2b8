"""Figures of images on features of published networks."""
