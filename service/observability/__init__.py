"""What the service tells of itself: metrics, probes, log records."""
