"""Remote: stores behind a URI, copied to a node or uploaded, and downloads."""
