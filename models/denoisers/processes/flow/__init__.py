"""Flow matching along straight lines. Importing this package imports no torch; most of its modules do."""
