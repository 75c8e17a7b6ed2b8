"""Images: captioned images decoded to sizes by aspect ratio, captions and features as columns, the idx format."""
