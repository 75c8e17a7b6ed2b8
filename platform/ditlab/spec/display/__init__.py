"""Specs as notebooks show them: what differs from the defaults first."""
