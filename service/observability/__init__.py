"""Metrics and probes of the service."""
