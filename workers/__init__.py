"""The processes that run on the Ray cluster: the driver of a training attempt, its ranks, and ingest.

Nothing imports this package; its modules are started by name. It reports over HTTP and never touches SQL.
"""
