"""Course of a run: which steps were done when, by which workers, machines and specs, as its records have it."""
