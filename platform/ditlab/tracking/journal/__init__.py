"""A run's journal: an append-only file of JSON lines that holds every metric, tag and artifact. Imports no mlflow."""
