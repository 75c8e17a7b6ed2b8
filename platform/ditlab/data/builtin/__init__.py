"""Built-in data: stores that need no download, written at their first use."""
