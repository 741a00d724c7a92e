"""Preparations: images of a data set are decoded into the cache before a job needs them."""
