"""Averages of weights after the fact: profiles, the steps of snapshots, and combinations of kept averages."""
