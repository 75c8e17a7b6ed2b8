"""Records of a source, read from numbered blocks of its files: Parquet, Arrow, JSON lines, MDS.

`blocks.record_blocks` cuts a listing (`block_imports.listing`) into blocks; `records.read_records` reads one, whatever
its kind, in memory that does not grow with its files. Both are pure functions of files and arguments. Single formats:
`arrow_streams.arrow_batches` and `parquet.parquet_batches` give record batches of columns, `mds.mds_samples` and
`json_lines.lines_between` what their names say.
"""
