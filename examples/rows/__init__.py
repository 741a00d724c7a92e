"""Rows that other libraries have published, each as one command: see README.md."""
