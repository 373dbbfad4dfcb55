"""A recurrent model that writes sentences by beam search, the beams being kept in Python."""

import heapq
import math

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, VOCABULARY, LENGTH = 4, 24, 12


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.cell = nn.GRUCell(16, 16)
        self.head = nn.Linear(16, VOCABULARY)

    def step(self, tokens: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.cell(self.embedding(tokens), state)
        return torch.log_softmax(self.head(state), -1), state

    def forward(self, start: int) -> list[tuple[float, list[int]]]:
        beams = [(0.0, [start])]
        state = torch.zeros(1, 16, device=device)
        finished: list[tuple[float, list[int]]] = []
        for _ in range(LENGTH):
            tokens = torch.tensor([words[-1] for _, words in beams]).to(device)
            scores, state = self.step(tokens, state)
            best, index = scores.topk(WIDTH)
            candidates = []
            rows = zip(beams, best.tolist(), index.tolist(), strict=True)
            for row, ((total, words), found, chosen) in enumerate(rows):
                used = set(words[-4:])
                for score, word in zip(found, chosen, strict=True):
                    penalty = 0.5 if word in used else 0.0
                    length = ((5 + len(words)) / 6) ** 0.6
                    candidates.append(((total + score - penalty) / length, row, total + score, [*words, int(word)]))
            kept = heapq.nlargest(WIDTH, candidates, key=lambda item: item[0])
            finished += [(rank, words) for rank, _, _, words in kept if words[-1] == 0]
            state = state[torch.tensor([row for _, row, _, _ in kept]).to(device)]
            beams = [(total, words) for _, _, total, words in kept]
        return sorted(finished or [(total, words) for total, words in beams], reverse=True)


model = Writer().to(device).eval()
with torch.no_grad():
    for number in range(40):
        sentences = model(1 + number % (VOCABULARY - 1))
        assert all(math.isfinite(score) for score, _ in sentences)
