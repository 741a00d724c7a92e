"""Training without a service, in this process or in each process of torchrun."""
