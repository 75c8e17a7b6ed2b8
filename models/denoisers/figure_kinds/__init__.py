"""Kinds of figures that several families share, each drawn from plain arrays or from one part of a network."""
