"""Runs of data sets that people request: previews and preparations. They are queued, and tenants take turns."""
