"""Runs that people request of data sets and models: previews, preparations, model runs and searches. They are queued, and tenants take turns."""
