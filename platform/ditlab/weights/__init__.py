"""Published weights: files, formats, and rules between their names and ours."""
