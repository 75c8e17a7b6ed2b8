"""Runs and their history: the local registry of runs, the journal of each, and MLflow behind it.

The only package that imports mlflow, and only inside functions of `mlflow_*.py` and
`system_metrics.py`: every module here is cheap to import.
"""
