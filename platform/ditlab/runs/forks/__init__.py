"""Forks: runs that go on from another run's checkpoint. Their start, their checks, their lineage."""
