"""Records of a source, read from numbered blocks of its files: Parquet, Arrow, JSON lines, MDS."""
