"""Random streams that depend on what they are for, and on nothing else.

Each consumer of randomness (the order of an epoch, the views of a step, the chain of DAR) draws from
a stream of its own, derived from the job's seed, a purpose and a position. So a resumed run needs no
saved stream for them, one consumer cannot disturb another, and every rank can draw the whole global
batch's numbers and take its share: the result does not depend on the number of processes.
"""

import hashlib

import torch


def derive_seed(seed: int, purpose: str, *position: int) -> int:
    """A 63-bit seed for one purpose at one position, e.g. `derive_seed(seed, "augment", step)`."""
    key = ":".join([str(seed), purpose, *map(str, position)])
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


def stream(seed: int, purpose: str, *position: int) -> torch.Generator:
    """A CPU generator seeded with `derive_seed`: the same on every rank and device."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *position))
