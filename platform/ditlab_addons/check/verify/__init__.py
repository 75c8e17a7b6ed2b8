"""Verification of a run: receipts, files, data, and some of its steps done again."""
