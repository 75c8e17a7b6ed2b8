"""Inputs: rows of a store as the tensors that a model, its loss and its sampler take, and keyed
random numbers.
"""
