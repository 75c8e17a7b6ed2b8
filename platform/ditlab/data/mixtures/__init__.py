"""Mixtures: several sources as one, drawn by weight."""
