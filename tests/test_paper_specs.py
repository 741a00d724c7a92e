"""The specs of the papers' tables: generated from these tables, and valid for their data sets."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.data.published import PUBLISHED
from dasl_core.methods.simclr import nt_xent
from dasl_core.spec import DatasetFacts, JobSpec, load_spec, resolve
from examples.papers import dar
from examples.papers.__main__ import files, rows
from examples.papers.compare import compare
from examples.papers.row import SPECS
from tools.authors_settings import DATASETS


def test_specs_and_tables_are_those_that_the_rows_give() -> None:
    written = files()
    assert set(SPECS.glob("*.yaml")) == {path for path in written if path.parent == SPECS}
    for path, text in written.items():
        assert path.read_text() == text, f"{path.name}: run `python -m examples.papers`"


def test_every_published_figure_of_dar_stands_beside_a_spec_or_has_a_reason() -> None:
    beside = dict.fromkeys(dar.figures(), 0)
    for row, lines in dar.rows_with_lines():
        for line, suffix in zip(lines, ("", " (longer)"), strict=False):
            figures = {f"{name}{suffix}": value for name, value in dar.figures()[line].items()}
            assert figures.items() <= row.published.items(), (row.name, line)
            beside[line] += 1
    covered = {line for line, count in beside.items() if count}
    assert not {line for line in covered if line.method in dar.NOT_BUILT}
    assert {line.method for line in beside.keys() - covered} == dar.NOT_BUILT.keys()
    # 27 supervised lines of four figures, and 64 self-supervised ones of three.
    assert sum(map(len, dar.figures().values())) == 300
    assert sum(len(dar.figures()[line]) for line in covered) == 204


def test_compare_shows_the_best_epoch_beside_the_last() -> None:
    rows_of = {row.name: row for row in rows()}
    evaluations = [
        {"epoch": epoch, "subject": subject, "metrics": {"recall_at_1": recall, "nmi": 0.5}}
        for epoch, recall in enumerate((0.1, 0.72, 0.7), start=1)
        for subject in ("backbone", "embedding")
    ]
    lines = compare(rows_of["dar-cub200-proxy-anchor-none"], evaluations).splitlines()
    assert lines[0] == "| | Published | Last epoch (3) | Best epoch (2) |"
    assert "| NMI | 72.31 | 50.00 | 50.00 |" in lines
    assert "| R@1 | 69.72 | 70.00 | 72.00 |" in lines
    assert "| R@8 | 92.41 |  |  |" in lines
    with pytest.raises(ValueError, match="no evaluation of the backbone"):
        compare(rows_of["dar-imagenet-vit-dino-300-free"], evaluations[:0])


def test_every_spec_resolves_for_the_size_of_its_data_set() -> None:
    for row in rows():
        side = 32 if row.dataset.startswith("cifar") else 256
        if row.dataset == "imagenet":
            facts = DATASETS["imagenet"]
        else:
            assert row.test_part in PUBLISHED[row.dataset].sizes
            images, classes = PUBLISHED[row.dataset].sizes["train"]
            facts = DatasetFacts(num_images=images, num_classes=classes, median_size=side)
        spec = load_spec(row.file)
        resolved = resolve(JobSpec.model_validate(spec), facts)
        assert resolved.evaluate.dataset == f"{row.dataset}-{row.test_part}"
        assert resolved.evaluate.crop_pct == (1 if side == 32 else 0.875)
        if resolved.method.supervised:
            assert resolved.evaluate.on == "embedding"


def sec_authors_loss(embeddings: Tensor) -> Tensor:
    """SupConLoss without labels: temperature 0.5, base temperature 0.07."""
    z = F.normalize(embeddings.flatten(0, 1), dim=1)
    logits = (z @ z.T / 0.5).fill_diagonal_(-torch.inf)
    return 0.5 / 0.07 * F.cross_entropy(logits, torch.arange(len(z)).roll(len(z) // 2))


def sec_authors_gradient_loss(embeddings: Tensor) -> Tensor:
    """A loss with the gradient of their two processes, which gather the embeddings without gradient."""
    first = torch.arange(embeddings.shape[1])[:, None] < embeddings.shape[1] // 2
    own = [torch.where(half, embeddings, embeddings.detach()) for half in (first, ~first)]
    return torch.stack([sec_authors_loss(each) for each in own]).mean()


def test_contrastive_rows_of_sec_make_the_steps_of_the_authors() -> None:
    optimizers = [
        row.settings()["train"]["optimizer"]
        for row in rows()
        if "-simclr-" in row.name and row.name.startswith("sec-")
    ]
    assert len(optimizers) == 8
    assert all(each == optimizers[0] for each in optimizers)
    rate, decay = optimizers[0]["lr"], optimizers[0]["weight_decay"]
    ours = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0)).double()
    theirs = ours.clone().requires_grad_()
    ours.requires_grad_()
    our_sgd = torch.optim.SGD([ours], lr=rate, momentum=0.9, weight_decay=decay)
    their_sgd = torch.optim.SGD([theirs], lr=0.5, momentum=0.9, weight_decay=1e-4)
    for _ in range(3):
        our_sgd.zero_grad()
        nt_xent(ours, 0.5).backward()
        our_sgd.step()
        their_sgd.zero_grad()
        sec_authors_gradient_loss(theirs).backward()
        their_sgd.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
