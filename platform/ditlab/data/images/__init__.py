"""Images: captioned images decoded to sizes by aspect ratio, captions as a column."""
