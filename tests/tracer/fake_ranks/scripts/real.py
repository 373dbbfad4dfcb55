# mypy: ignore-errors
"""Run the plans by gloo on the host, and write what each one's third iteration moves and multiplies to a file."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parent))
import plans

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


class Watch(TorchDispatchMode):
    """Log ops of process groups and matrix products while two steps have been taken."""

    def __init__(self):
        super().__init__()
        self.steps, self.collectives, self.products = 0, [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(item, torch.distributed.tensor.DTensor) for item in types):
            return NotImplemented
        if any(item.__name__ == "AsyncCollectiveTensor" for item in types):
            return NotImplemented
        result, name = func(*args, **(kwargs or {})), func._schema.name
        if self.steps == plans.STEPS - 1:
            if name in PRODUCTS:
                self.products.append([name, [list(item.shape) for item in args if isinstance(item, torch.Tensor)]])
            elif name.startswith(("c10d::", "_c10d_functional::")) and not name.endswith(
                ("wait_tensor", "_wrap_tensor_autograd", "barrier")
            ):
                self.collectives.append([name, *sizes(name, args, result), members(args)])
        return result


def sizes(name, args, result):
    """Return elements sent and received."""
    first, second = (
        [item.numel() for item in tree_leaves(value) if isinstance(item, torch.Tensor)] for value in args[:2]
    )
    if name == "c10d::send":
        return sum(first), 0
    if name == "c10d::recv_":
        return 0, sum(first)
    if name.startswith("_c10d_functional"):
        return sum(first), result.numel()
    if name in ("c10d::allreduce_", "c10d::broadcast_"):
        return sum(first), sum(first)
    return sum(second), sum(first)


def members(args):
    for item in args:
        if isinstance(item, torch.ScriptObject) and "ProcessGroup" in str(item._type()):
            return dist.get_process_group_ranks(dist.ProcessGroup.unbox(item))
        if isinstance(item, str) and item not in ("sum", "avg"):
            return dist.get_process_group_ranks(torch._C._distributed_c10d._resolve_process_group(item))
        if isinstance(item, dist.ProcessGroup):
            return dist.get_process_group_ranks(item)
    return None


def main():
    rank, world, folder, *kinds = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(world))
    found = {}
    for kind in kinds:
        torch.manual_seed(0)
        with Watch() as watch:

            def count(*_call, watch=watch):
                watch.steps += 1

            handle = register_optimizer_step_post_hook(count)
            getattr(plans, kind)()
            handle.remove()
        found[kind] = {"collectives": watch.collectives, "products": watch.products}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
