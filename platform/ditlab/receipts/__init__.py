"""Receipts of training: what was fed into each step and what came out, in a chain of digests.

`steps.bin` has a row of 40 bytes for every step that was done, `attempts.jsonl` a line for every
attempt: each time that a process group begins or goes on with a run.
"""
