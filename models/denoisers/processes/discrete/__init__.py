"""Discrete diffusion of tokens on the uniform graph. Importing this package imports no torch; its modules do."""
