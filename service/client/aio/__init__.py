"""The asynchronous client, from whose modules `tools.sync_client` writes those of `service.client.sync`."""
