"""`python -m ditlab`: the same as the command `ditlab`."""

from ditlab.cli.main import main

main()
