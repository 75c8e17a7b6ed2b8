"""Sweeps over the samples of a trained run: nothing trains, samples are drawn, measured and
compared.
"""
