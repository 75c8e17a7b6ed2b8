"""Evaluation of imputed regions on held-out windows, beside baselines that need no network."""
