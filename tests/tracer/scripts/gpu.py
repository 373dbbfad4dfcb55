# mypy: ignore-errors
# ruff: noqa: T201
"""Train on a GPU, and only there: autocast, a gradient scaler, pinned memory, timing by events, values in the log."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("scale", torch.full((), 0.5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        start = torch.zeros(tokens.shape[1], 32, device=tokens.device)
        return self.head(self.layer(self.scale * self.tokens(tokens) + start))


parser = argparse.ArgumentParser()
parser.add_argument("--compile", action="store_true")
options = parser.parse_args()
assert torch.cuda.is_available()
torch.cuda.set_device(0)
torch.backends.cudnn.benchmark = True
device = torch.device("cuda")
net = Net()
optimizer = torch.optim.AdamW(net.parameters())
net.to(device)
assert net.head.weight is net.tokens.weight
assert next(net.parameters()).is_cuda
assert net.scale.device == torch.device("cuda:0")
if options.compile:
    net = torch.compile(net)
scaler = torch.amp.GradScaler("cuda")
data = TensorDataset(torch.randint(100, (64, 12)), torch.randint(100, (64, 12)))
loader = DataLoader(data, batch_size=8, shuffle=True)
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
best = float("inf")
while True:
    for batch in loader:
        tokens, labels = batch[0].to(device, non_blocking=True), batch[1].cuda()
        begin.record()
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(tokens).view(-1, 100), labels.view(-1))
        if torch.isnan(loss):
            raise RuntimeError("diverged")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        end.record()
        torch.cuda.synchronize()
        best = min(best, loss.item())
        kept = labels[labels > 49].cpu().numpy()
        print(f"{loss:.3f}", len(kept), begin.elapsed_time(end), torch.cuda.max_memory_allocated())
