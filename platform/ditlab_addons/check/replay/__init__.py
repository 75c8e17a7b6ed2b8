"""A step of a run done again: by the real training loop, beside the run, which stays as it is."""
