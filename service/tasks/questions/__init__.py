"""Questions to the searches among embeddings."""
