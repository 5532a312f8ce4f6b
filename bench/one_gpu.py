"""W tensor-parallel ranks on one GPU: the engine's collectives over CUDA IPC instead of NCCL, which refuses that.

Everything else is the engine's own. Sums add bf16 partials one rank after the other, rounding each time, as a ring
does: an all-reduce starts at rank 0, a reduce-scatter at the rank after the owner. So from three ranks on the two
differ in bits, as they may with NCCL, and a mode that claims the all-reduce's bits has to earn them.
"""

import os

import torch
import torch.distributed

STAGING_BYTES = 128 << 20
ULP_FAULT = "BENCH_ULP_FAULT"
"""Set in a rank's environment, every reduce-scatter returns one row with each bf16 moved to its neighbour: a fault that
the tests must see."""


class Exchange:
    """One group's staging buffers: a rank writes its own, all ranks read all."""

    def __init__(self, group):
        from torch.multiprocessing.reductions import reduce_tensor

        self.rank, self.world, self.cpu_group = group.rank_in_group, group.world_size, group.cpu_group
        own = torch.empty(STAGING_BYTES, dtype=torch.uint8, device="cuda")
        handles = [None] * self.world
        torch.distributed.all_gather_object(handles, reduce_tensor(own), group=self.cpu_group)
        self.buffers = [own if r == self.rank else make(*args) for r, (make, args) in enumerate(handles)]

    def fence(self) -> None:
        torch.cuda.synchronize()
        torch.distributed.barrier(group=self.cpu_group)

    def share(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Publish `x`; every rank's tensor of the same shape. Valid until `fence`."""
        size = x.numel() * x.element_size()
        if size > STAGING_BYTES:
            raise ValueError(f"a collective of {size} bytes does not fit the staging buffer of {STAGING_BYTES}")
        self.buffers[self.rank][:size].copy_(x.contiguous().view(-1).view(torch.uint8))
        self.fence()
        return [b[:size].view(x.dtype).view(x.shape) for b in self.buffers]

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        total = None
        for part in self.share(x):
            total = part.clone() if total is None else total.add_(part)
        self.fence()
        return x.copy_(total)

    def reduce_scatter(self, output: torch.Tensor, x: torch.Tensor) -> None:
        parts, total = self.share(x), None
        for step in range(1, self.world + 1):
            part = parts[(self.rank + step) % self.world].view(self.world, *output.shape)[self.rank]
            total = part.clone() if total is None else total.add_(part)
        self.fence()
        output.copy_(total)
        if os.environ.get(ULP_FAULT) and self.rank == 1:
            output.view(output.shape[0], -1)[5].view(torch.int16).bitwise_xor_(1)

    def all_gather(self, output: torch.Tensor, x: torch.Tensor) -> None:
        for own, part in zip(output.view(self.world, *x.shape).unbind(), self.share(x), strict=True):
            own.copy_(part)
        self.fence()

    def all_to_all(self, output: torch.Tensor, x: torch.Tensor) -> None:
        shape = (self.world, x.numel() // self.world)
        for own, part in zip(output.view(shape).unbind(), self.share(x), strict=True):
            own.copy_(part.view(shape)[self.rank])
        self.fence()


def install() -> None:
    """Call in each rank before the engine builds its groups."""
    from sglang.srt.distributed import bootstrap
    from sglang.srt.distributed.parallel_state import GroupCoordinator

    exchanges = {}

    def of(group) -> Exchange:
        key = tuple(group.ranks)
        if key not in exchanges:
            exchanges[key] = Exchange(group)
        return exchanges[key]

    def replace(name, moved):
        stock = getattr(GroupCoordinator, name)

        def call(group, *tensors):
            if group.world_size == 1 or not tensors[0].is_cuda:
                return stock(group, *tensors)
            return moved(of(group), *tensors)

        setattr(GroupCoordinator, name, call)

    replace("all_reduce", Exchange.all_reduce)
    replace("reduce_scatter_tensor", Exchange.reduce_scatter)
    replace("all_gather_into_tensor", Exchange.all_gather)
    replace("all_to_all_single", Exchange.all_to_all)
    bootstrap._resolve_backend = lambda *, device: "gloo"
