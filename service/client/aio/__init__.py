"""The asynchronous client, from whose modules `tools.sync_client` writes the synchronous ones."""
