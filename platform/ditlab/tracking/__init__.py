"""Runs and their history: the local registry, the journal, and MLflow behind it.

The one room that imports mlflow, and only in `client.py`, `sender.py` and `system_metrics.py`; every other module here
is cheap to import.
"""
