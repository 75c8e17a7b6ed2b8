"""Files, local or behind a URI, that checkpoints and data are read from and written to.

`files` writes durably; `local.LocalFiles` and `remote.RemoteFiles` are the files below a folder or
URI, two levels deep, whose errors name the setting. Credentials come from the environment, as the
library of each scheme reads them.
"""
