"""Add-on: figures of sample quality on published networks and language models, and tasks of
lm-evaluation-harness.
"""
