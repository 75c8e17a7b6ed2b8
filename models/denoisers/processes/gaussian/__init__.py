"""Gaussian diffusion in discrete time. Importing this package imports no torch; its modules do."""
