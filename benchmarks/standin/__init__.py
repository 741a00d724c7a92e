"""Replacements of Ray and training that cost nothing, to measure how the control plane survives crashes.

Everything else is real and has its own processes: API, dispatcher, database, drivers, ranks, HTTP.
"""
