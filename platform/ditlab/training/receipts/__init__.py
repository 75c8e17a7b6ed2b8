"""Receipts of a run in training: digests of what its steps are fed, and facts of its attempts."""
