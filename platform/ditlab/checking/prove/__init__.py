"""Proof that an engine computes what a spec says, by plain readings of the same steps."""
