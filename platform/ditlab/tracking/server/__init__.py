"""MLflow's server and UI for a home folder: its accounts, its allowed hosts, its storage. Imports no mlflow."""
