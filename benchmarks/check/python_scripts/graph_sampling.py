"""A graph network that is trained on neighbourhoods, sampled by a Python sampler within a data loader."""

import random
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(1)
NODES = 2000
NEIGHBOURS = [random.sample(range(NODES), random.randint(4, 20)) for _ in range(NODES)]  # noqa: S311
FEATURES, LABELS = torch.randn(NODES, 12), torch.randint(0, 4, (NODES,))


class Nodes(Dataset[int]):
    def __len__(self) -> int:
        return NODES

    def __getitem__(self, index: int) -> int:
        return index


def sample(seeds: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sample two hops of neighbours, and number what was met."""
    numbers = {node: number for number, node in enumerate(seeds)}
    edges: list[tuple[int, int]] = []
    frontier = list(seeds)
    for fan_out in (6, 4):
        met = []
        for node in frontier:
            around = NEIGHBOURS[node]
            for other in random.sample(around, min(fan_out, len(around))):
                if other not in numbers:
                    numbers[other] = len(numbers)
                    met.append(other)
                edges.append((numbers[other], numbers[node]))
        frontier = met
    ends = torch.tensor(edges).t().contiguous()
    nodes = torch.tensor(list(numbers))
    return FEATURES[nodes], ends[0], ends[1], LABELS[torch.tensor(list(seeds))]


class Convolution(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(width, out), nn.Linear(width, out)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mean = torch.zeros_like(x).index_add_(0, target, x[source])
        return torch.relu(self.own(x) + self.other(mean))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Convolution(12, 16), Convolution(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x, source, target), source, target))


model = Network().to(device)
adam = torch.optim.Adam(model.parameters())
loader = DataLoader(Nodes(), batch_size=16, shuffle=True, collate_fn=sample)
for step, batch in enumerate(loader):
    x, source, target, labels = (item.to(device) for item in batch)
    out = model(x, source, target)[: len(labels)]
    loss = nn.functional.cross_entropy(out, labels)
    loss.backward()
    adam.step()
    adam.zero_grad()
    if step == 40:
        break
