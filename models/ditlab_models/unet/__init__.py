"""Convolutional U-Net on images, trained by flow matching (see README.md)."""
