"""Stores: Arrow shards with a manifest, plain or bucketed by image size; written, read, and viewed
in part.
"""
