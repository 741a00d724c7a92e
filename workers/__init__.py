"""What runs on the Ray cluster: the driver of an attempt, its training ranks, and ingest.

Nothing imports this package; it is started by name. It reports home over HTTP and never touches SQL.
"""
