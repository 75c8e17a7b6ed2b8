"""Curves as SVG: thinned, scaled and drawn by code, legible in light and dark, with values to read by hand or key."""
