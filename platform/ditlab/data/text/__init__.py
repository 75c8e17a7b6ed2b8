"""Text: documents, tokenisers, and stores of tokens."""
