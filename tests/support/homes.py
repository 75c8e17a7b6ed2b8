"""Copies of homes that tests write to."""

import shutil
from pathlib import Path

from ditlab.home import Home


def settled(root: Path) -> Home:
    """Make a copied home one of its own, without MLflow's database: a command that needs one makes
    it.
    """
    home = Home(Path(root))
    for path in home.root.glob("mlflow.db*"):
        path.unlink()
    shutil.rmtree(home.artifacts, ignore_errors=True)
    home.write_marker()
    return home
