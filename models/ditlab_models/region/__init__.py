"""Region diffusion over genomic motifs (see README.md)."""
