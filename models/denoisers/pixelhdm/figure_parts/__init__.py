"""Parts of PixelHDM's figures."""
