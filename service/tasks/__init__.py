"""Tasks on data sets and models: previews, preparations, model runs and searches. They are queued; tenants take turns."""
