"""Where a training step's time goes, by module and by operator."""
