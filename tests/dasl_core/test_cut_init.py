"""Cut-initialization divides the weights of layers, and nothing else."""

import pytest
import torch
from torch import nn

from dasl_core.methods import build_method
from dasl_core.models.cut_init import cut_weights
from dasl_core.spec import DatasetFacts, JobSpec, SpecError, resolve
from tests.support.training_world import tiny_spec

FACTS = DatasetFacts(num_images=200, num_classes=None, median_size=32)


def test_outputs_of_two_layers_are_divided_twice() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 4, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5, bias=False)
    )
    images = torch.randn(2, 3, 2, 2)
    before = network(images)
    cut_weights(network, 3)
    torch.testing.assert_close(network(images) * 9, before)


@pytest.mark.parametrize("method", ["simclr", "byol"])
def test_weights_of_student_and_teacher_are_divided(method: str) -> None:
    def weights(cut: float | None) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        train = {"cut_init": cut, "optimizer": {"name": "sgd"}}
        spec = JobSpec.model_validate(tiny_spec(method={"name": method}, train=train))
        return build_method(resolve(spec, FACTS)).state_dict()

    before, after = weights(None), weights(9.0)
    for name, value in before.items():
        factor = 9 if name.endswith("weight") and value.ndim > 1 else 1
        assert torch.equal(after[name], value / factor), name


def test_prototypes_keep_unit_length() -> None:
    spec = JobSpec.model_validate(tiny_spec(method={"name": "swav"}, train={"cut_init": 3}))
    prototypes = build_method(resolve(spec, FACTS)).get_parameter("prototypes.weight")
    torch.testing.assert_close(prototypes.norm(dim=1), torch.ones(len(prototypes)))


def test_cut_of_pretrained_weights_is_refused() -> None:
    backbone = {"pretrained": "/weights.safetensors", "name": "test_resnet"}
    spec = tiny_spec(backbone=backbone, train={"cut_init": 3})
    with pytest.raises(SpecError, match=r"train\.cut_init: divides random initial weights"):
        resolve(JobSpec.model_validate(spec), FACTS)
