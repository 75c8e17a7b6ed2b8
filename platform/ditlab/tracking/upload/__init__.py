"""Journals on their way to MLflow: the connection, the cursor of each journal, and what sends records."""
