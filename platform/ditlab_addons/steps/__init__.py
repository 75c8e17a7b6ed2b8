"""Graphs of experiments that build on each other, each step run once (`ditlab make`)."""
