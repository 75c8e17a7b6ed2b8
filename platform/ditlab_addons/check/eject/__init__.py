"""A spec's training as one file of plain torch."""
