"""What Prometheus sees of the daemon."""
