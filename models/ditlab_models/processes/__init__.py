"""Noising processes, their solvers and objectives. Importing this package imports no torch; most of
its modules do.
"""
