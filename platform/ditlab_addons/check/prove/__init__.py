"""Proof that an engine computes what a spec says, by a reference of the same steps."""
