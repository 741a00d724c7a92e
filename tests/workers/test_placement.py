"""The report of the ranks' nodes."""

import pytest

from service.protocol import PlacementData
from workers import placement
from workers.placement import RankNode

A, B = RankNode("a" * 56, "10.0.0.1"), RankNode("b" * 56, "10.0.0.2")


@pytest.mark.parametrize(
    ("nodes", "message", "ranks"),
    [
        ([A], "1 rank on 10.0.0.1", [[0]]),
        ([A, B, A], "2 ranks on 10.0.0.1, 1 rank on 10.0.0.2", [[0, 2], [1]]),
        ([RankNode(str(n), "") for n in range(9)], "9 ranks on 9 nodes", [[n] for n in range(9)]),
    ],
)
def test_placement_lists_the_ranks_of_each_node(
    nodes: list[RankNode], message: str, ranks: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_nodes", ())  # restored after the test
    placement.set_nodes(nodes)
    text, data = placement.describe(3, "n1")
    assert text == message
    report = PlacementData.model_validate(data)
    assert (report.attempt, report.driver) == (3, "n1")
    assert [node.ranks for node in report.nodes] == ranks
