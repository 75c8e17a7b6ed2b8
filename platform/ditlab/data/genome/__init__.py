"""Genome: windows of regions, read from the stores of GET or generated."""
