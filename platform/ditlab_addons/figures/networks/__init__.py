"""Published networks that figures rest on: of images, and language models."""
