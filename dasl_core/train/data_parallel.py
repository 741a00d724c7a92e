"""Gradient averaging over ranks, and the process group for rank 0's decisions."""

import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dasl_core.distributed import world_size
from dasl_core.methods import Method
from dasl_core.train.timing import StepTimer


def wrap_ddp(method: Method, timer: StepTimer) -> nn.Module:
    """Wrap the method in DDP, whose exchange of gradients `timer` measures; with one rank, return it itself."""
    if world_size() == 1:
        return method
    # Without device_ids, with which DDP would copy to the device what `Method.draw` leaves on the CPU.
    model = DistributedDataParallel(method, gradient_as_bucket_view=True)
    # Statistics are computed or averaged over all ranks, so buffers are equal without a broadcast. The argument
    # was renamed in torch 2.13; the attribute was not.
    model.broadcast_buffers = False
    model.register_comm_hook(timer, average)
    return model


def average(
    timer: StepTimer,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch hides it from type checkers
) -> Future[Tensor]:
    """Average a bucket of gradients over ranks, as DDP does by default, and measure the time."""
    end = timer.begin("communication")
    work = dist.all_reduce(bucket.buffer().div_(world_size()), async_op=True)
    assert work is not None, "it is asynchronous"

    def finish(done: Future[list[Tensor]]) -> Tensor:
        end()
        return done.value()[0]

    return work.get_future().then(finish)


def control_group() -> dist.ProcessGroup | None:
    """Create a CPU group for rank 0's decisions, so that their broadcast never waits for a GPU."""
    if world_size() == 1:
        return None
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup), "every rank is in the group of all"
    return group
