"""Ray and training that cost nothing, where what is measured is the control plane's way with crashes.

All else is real and a process of its own: API, dispatcher, database, drivers, ranks, HTTP between them.
"""
