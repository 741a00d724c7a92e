"""Independent random streams, one for each purpose and position.

Each consumer of randomness (the order of an epoch, the views of a step, the chain of DAR) draws from
its own stream, derived from the job's seed, a purpose and a position. So a resumed run needs no
saved stream for them, one consumer cannot disturb another, and every rank can draw the whole global
batch's numbers and take its share, so the result does not depend on the number of processes. Views need
not draw the numbers of other ranks, because they hash a seed with the position of an image (`data.views`).
"""

import hashlib

import torch
from torch import Tensor


def derive_seed(seed: int, purpose: str, *position: int) -> int:
    """Derive a 63-bit seed for one purpose at one position, e.g. `derive_seed(seed, "augment", step)`."""
    key = ":".join([str(seed), purpose, *map(str, position)])
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


def stream(seed: int, purpose: str, *position: int) -> torch.Generator:
    """Create a CPU generator seeded with `derive_seed`: the same on every rank and device."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *position))


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Snapshot the state of this process's global generators, used by dropout."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
