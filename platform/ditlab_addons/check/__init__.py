"""Add-on: checks of training. The engine is proved, steps are replayed, runs are verified."""
