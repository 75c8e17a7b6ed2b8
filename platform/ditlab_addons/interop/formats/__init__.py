"""Formats of published weights: a file for each network, whose formats `addon.py` names."""
