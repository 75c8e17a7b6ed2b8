"""Evaluation of language models on held-out text, beside baselines that need no network."""
