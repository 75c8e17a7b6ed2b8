"""Receipts of training: what was fed into each step and what came out, in a chain of digests."""
