"""Pseudo-labels: assignments in each epoch."""

import pytest
import torch

from dasl_core.spec import ResolvedClusters
from dasl_core.train.pseudo_labels import PseudoLabels

IMAGES, BATCH, STEPS, K = 10, 4, 2, 2


def test_images_share_label_only_in_last_clustering() -> None:
    """Each epoch omits two images, and numbers its clusters differently."""
    truth = torch.arange(IMAGES) % K
    embeddings = torch.eye(K)[truth].repeat(2, 1, 1)  # (V, N, h)
    clusters = ResolvedClusters(source="kmeans", k=K, every_epochs=1)
    labels = PseudoLabels(clusters, torch.arange(IMAGES), STEPS, BATCH, seed=0)
    generator = torch.Generator().manual_seed(0)
    numberings = set()
    for epoch in range(1, 9):
        order = torch.randperm(IMAGES, generator=generator)[: STEPS * BATCH]
        for batch in order.split(BATCH):
            labels.observe(embeddings[:, batch], batch)
        figures = labels.end_epoch(epoch, truth)
        seen = torch.zeros(IMAGES, dtype=torch.bool)
        seen[order] = True
        alike = labels.labels[:, None] == labels.labels[None]
        together = (truth[:, None] == truth[None]) & seen[:, None] & seen[None]
        assert torch.equal(alike, together | torch.eye(IMAGES, dtype=torch.bool)), epoch
        assert figures["nmi_classes"] == pytest.approx(1)
        assert figures.get("nmi_previous", 1.0) == pytest.approx(1)
        assert ("nmi_previous" in figures) == (epoch > 1)
        numberings.add(int(labels.labels[order[truth[order] == 0][0]]))
    assert numberings == {0, 1}, "else stale numbers would not be seen here"
