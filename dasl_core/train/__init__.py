"""Training: the loop and its components; `dasl_core.train.build.pretrain` is the entry point."""
