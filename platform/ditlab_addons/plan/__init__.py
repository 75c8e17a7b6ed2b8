"""Add-on: memory, time and cost of a run before it takes a GPU; where the time of a step goes."""
