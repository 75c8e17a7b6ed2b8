"""Notes that MLflow shows with a run, as Markdown: what a reviewer reads first. Imports no mlflow."""
