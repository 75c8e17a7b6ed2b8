"""Records of a source, read from numbered blocks of its files: Parquet, CSV, JSON lines; members of
tars.
"""
