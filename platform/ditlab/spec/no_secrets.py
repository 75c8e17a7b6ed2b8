"""No secret in a spec: it is copied into every run's folder, checkpoint and MLflow run."""

from collections.abc import Mapping
from typing import Any

from ditlab.secrets import hide_in_urls
from ditlab.spec.uris import refuse_secret


def refuse_secrets(value: Any, path: str = "") -> None:
    """Raise ValueError for a URL with a password or a secret key anywhere in a spec's mapping; it does not repeat
    them."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            refuse_secrets(below, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for below in value:
            refuse_secrets(below, path)
    elif isinstance(value, str):
        if path.endswith("tracking.uri") and (shown := hide_in_urls(value)) != value:
            raise ValueError(
                f"{path}={shown} holds a password, which would be written into every checkpoint; give it by "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead."
            )
        refuse_secret(path, value)
