"""Building blocks of the networks, each written once. Importing this package imports no torch; its
modules do.
"""
