"""Loading: held-out rows, the resumable order of samples, the prefetching loader, batches as a
model takes them.
"""
