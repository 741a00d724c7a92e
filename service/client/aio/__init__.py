"""The asynchronous client; `tools.sync_client` generates `service.client.sync` from its modules."""
