"""Files that are opened for a lock or a key, with something else in their place."""

import pytest

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.tracking.mlflow_connection import _database_lock
from ditlab.tracking.server import Administrator
from support import special_files
from support.watchdog import watchdog


@pytest.mark.parametrize("kind", ["pipe", "device", "circle", "folder"])
def test_neither_the_key_nor_the_databases_lock_is_waited_for(tmp_path, kind):
    home = Home(tmp_path)
    special_files.put(kind, home.mlflow_key)
    special_files.put(kind, tmp_path / "mlflow.db.lock")
    with watchdog(5):
        with pytest.raises(UserError, match=r"mlflow-key cannot be used \(.*no plain file\); remove it\.$"):
            Administrator("ann", "a-long-password").settings(home, {})
        with pytest.raises(OSError, match="no plain file"), _database_lock(f"sqlite:///{home.mlflow_database}"):
            pass
