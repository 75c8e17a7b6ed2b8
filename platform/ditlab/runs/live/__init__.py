"""A run's page served live on loopback: read only, from the journal, by an HTTP server of the standard library."""
