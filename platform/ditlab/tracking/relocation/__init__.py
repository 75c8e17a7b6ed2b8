"""Moved and copied homes: their former places, and the absolute paths in MLflow's database. Imports no mlflow."""
