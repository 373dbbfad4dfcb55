"""A training loop that logs, keeps moving averages and a confusion matrix, and writes a line of JSON per step."""

import io
import json
import logging
import math
import statistics
from collections import defaultdict, deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
stream = io.StringIO()
logging.basicConfig(stream=stream, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("train")
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5)).to(device)
sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=3))
confusion = [[0] * 5 for _ in range(5)]
inputs, targets = torch.randn(40, 16, 12), torch.randint(0, 5, (40, 16))


def summarise(values: deque[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "mean": round(statistics.fmean(ordered), 4),
        "median": ordered[len(ordered) // 2],
        "deviation": round(statistics.pstdev(ordered), 4),
        "last": values[-1],
    }


for step in range(40):
    x, y = inputs[step].to(device), targets[step].to(device)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    loss.backward()
    norms = [parameter.grad.norm() for parameter in model.parameters()]
    total = float(torch.stack(norms).norm())
    predicted, wanted = logits.argmax(1).tolist(), y.tolist()
    for guess, truth in zip(predicted, wanted, strict=True):
        confusion[int(truth)][int(guess) % 5] += 1
    accuracy = sum(int(a == b) for a, b in zip(predicted, wanted, strict=True)) / len(wanted)
    for name, value in (("loss", loss.item()), ("accuracy", accuracy), ("norm", total), ("log", math.log1p(total))):
        history[name].append(value)
    recalls = [row[index] / max(1, sum(row)) for index, row in enumerate(confusion)]
    line = {"step": step, "recall": recalls, **{name: summarise(values) for name, values in history.items()}}
    log.info("step %d: %s", step, json.dumps(line, sort_keys=True))
    for name, values in history.items():
        log.info("%-10s %s", name, " ".join(f"{value:.3f}" for value in values))
    sgd.step()
    sgd.zero_grad()
