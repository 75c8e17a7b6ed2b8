"""The key of the MLflow server, with something else in its place."""

import pytest

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.tracking.server import Administrator
from support import special_files
from support.watchdog import watchdog


@pytest.mark.parametrize("kind", ["pipe", "device", "circle", "folder"])
def test_the_key_is_not_waited_for(tmp_path, kind):
    home = Home(tmp_path)
    special_files.put(kind, home.mlflow_key)
    with watchdog(5), pytest.raises(UserError, match=r"mlflow-key cannot be used \(.*no plain file\); remove it\.$"):
        Administrator("ann", "a-long-password").settings(home, {})
