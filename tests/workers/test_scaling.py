"""What an attempt asks Ray Train for, as Ray's own configuration understands it."""

from pathlib import Path

from ray.train import ScalingConfig

from dasl_core.spec import ResolvedResources
from workers.ray_train import run_config, scaling_options


def test_job_without_choices_asks_for_cpus_alone() -> None:
    resources = ResolvedResources(workers=2, cpus_per_worker=3, gpus_per_worker=0)
    config = ScalingConfig(**scaling_options(resources, []))
    assert config.num_workers == 2
    assert config._resources_per_worker_not_none == {"CPU": 3}
    assert (config.placement_strategy, config.label_selector) == ("PACK", None)


def test_choice_of_nodes_is_passed_to_ray() -> None:
    resources = ResolvedResources(
        workers=2,
        cpus_per_worker=1,
        gpus_per_worker=1,
        memory_gb_per_worker=1.5,
        gpu_type="H100",
        node_labels={"rack": "x"},
        same_node=True,
    )
    config = ScalingConfig(**scaling_options(resources, ["ab12", "cd34"]))
    assert config._resources_per_worker_not_none == {"CPU": 1, "GPU": 1, "memory": 1_500_000_000}
    assert config.placement_strategy == "STRICT_PACK"
    assert (
        config._label_selector_per_worker(2)
        == [{"ray.io/node-id": "!in(ab12,cd34)", "rack": "x", "ray.io/accelerator-type": "H100"}]
        * 2
    )


def test_ray_does_not_repeat_what_failed(tmp_path: Path) -> None:
    """The dispatcher does, as an attempt of its own."""
    failures = run_config(f"file://{tmp_path}").failure_config
    assert failures is not None
    assert (failures.max_failures, failures.controller_failure_limit) == (0, 0)
