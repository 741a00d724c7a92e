"""Stands in for the real workers in tests of `dasl serve`: put before them on PYTHONPATH."""
