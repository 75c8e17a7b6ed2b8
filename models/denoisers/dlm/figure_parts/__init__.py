"""Parts of the language model's figures."""
