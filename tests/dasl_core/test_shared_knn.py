"""k-NN whose bank is shared by several ranks."""

import numpy as np
import torch

from dasl_core.distributed import all_ranks, rank, world_size
from dasl_core.evaluate import NotFiniteError, knn_hits
from tests.support.gloo_pool import GlooPool

BANKS = (1, 5, 61)
NEIGHBORS = (1, 3, 20)


def bank_and_queries(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return random features, and labels far from 0, 1, 2, ..."""
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size + 40, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(x.shape, generator=generator)
    y = 7 * (x + noise).argmax(dim=1) + 5
    return x[:size], y[:size], x[size:], y[size:]


def hits_of_shares() -> list[list[bool]]:
    found = []
    for size in BANKS:
        x, y, queries, labels = bank_and_queries(size)
        share = -(-size // world_size())
        mine = slice(rank() * share, (rank() + 1) * share)
        found += knn_hits(x[mine], y[mine], queries, labels, NEIGHBORS, group=all_ranks()).tolist()
    return found


def refusal_of_a_share() -> str:
    x, y, queries, labels = bank_and_queries(8)
    if rank() == 1:
        x[0] = np.nan
    try:
        knn_hits(x, y, queries, labels, group=all_ranks())
    except NotFiniteError as error:
        return str(error)
    return "accepted"


def test_ranks_that_share_the_bank_find_what_one_process_finds(pool: GlooPool) -> None:
    alone = [
        knn_hits(*bank_and_queries(size), (k,))[0].tolist() for size in BANKS for k in NEIGHBORS
    ]
    assert len({sum(hits) for hits in alone}) > 3
    for world in (2, 3):
        assert pool.call(world, hits_of_shares) == [alone] * world


def test_share_that_is_not_finite_fails_on_all_ranks(pool: GlooPool) -> None:
    messages = pool.call(2, refusal_of_a_share)
    assert all("train_x holds NaN or infinite numbers" in message for message in messages)
