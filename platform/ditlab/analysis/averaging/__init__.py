"""Averages of other lengths than a run has kept, as users ask for them."""
