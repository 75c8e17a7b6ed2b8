"""Comparison of several runs: their records, curves, tables, figures and page."""
