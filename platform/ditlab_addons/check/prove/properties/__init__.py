"""Properties of a training that need no second implementation: they see mistakes in what engine and
reference share.
"""
