"""Runs and their history: the local registry of runs, the journal of each, and MLflow behind it.

The only package that imports mlflow, and only in `upload/` and `system_metrics.py`, inside functions: every module here
is cheap to import.
"""
