"""`python -m ditlab`: the same as the command `ditlab`."""

import sys

# the working folder first: a `platform.py` there would take the standard library's place
if not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))

from ditlab.cli.main import main

main()
