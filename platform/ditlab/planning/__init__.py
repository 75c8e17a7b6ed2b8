"""Memory, time and cost of a run, before it takes a GPU."""
