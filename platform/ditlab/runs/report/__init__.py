"""Page of a run from its files: written as one HTML file, or served live. Needs no torch, and changes no file."""
