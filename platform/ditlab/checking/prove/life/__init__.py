"""Checks of a run's life: a kill and a resume, evaluation, a sample, the learning rate, dropped conditions."""
