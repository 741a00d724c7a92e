"""Training without a service, in this process or under torchrun."""
