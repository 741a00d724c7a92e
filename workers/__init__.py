"""Processes that run on the Ray cluster: the driver of a training attempt, its ranks, and ingest.

No other package imports this one; its modules are started by name. They report over HTTP, without SQL.
"""
