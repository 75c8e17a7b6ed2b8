"""Add-on: import of genomic regions from GET's zarr stores."""
