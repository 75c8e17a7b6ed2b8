"""Checks of training: the engine proved, steps replayed, runs verified."""
