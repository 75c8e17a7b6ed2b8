"""Add-on: published weights in, and exports that need no DiTLab out."""
