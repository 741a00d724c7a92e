"""The list of jobs: filters, orders and the rows of the page."""
