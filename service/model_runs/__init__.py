"""Runs of finished models: evaluations, embeddings and exports of a checkpoint; and neighbors of images."""
