"""Memory of a step: activations computed again, state in files, what is kept and what is released."""
