"""Records of a source, read from numbered blocks of its files: Parquet, Arrow, JSON lines, MDS.

`records.record_blocks` cuts a listing (`source_files`) into blocks; `records.read_records` reads one,
whatever its kind, in memory that does not grow with its files. Both are pure functions of files and arguments.
"""
