"""Places named by a URI: opened once for everybody who reads or writes there, with the knob's name in each message.

`opening.open_uri` finds the library for a scheme; `remote.RemoteFiles` are the files below a URI, two levels deep;
`failures` holds what a place that does not answer raises. Credentials come from the environment, as the library of each
scheme reads them.
"""
