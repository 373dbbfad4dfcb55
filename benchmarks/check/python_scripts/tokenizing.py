"""A language model that is trained on text which the loop splits into words and pieces itself."""

import random
import re
from collections import Counter

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(0)
SYLLABLES = ["ba", "co", "du", "fe", "gi", "ho", "ju", "ka", "lo", "me", "na", "pi", "qu", "ro", "su", "ti"]
WORDS = ["".join(random.choices(SYLLABLES, k=1 + number % 4)) for number in range(500)]  # noqa: S311
TEXT = [" ".join(random.choices(WORDS, k=24)) for _ in range(200)]  # noqa: S311
PIECES = {piece: number for number, piece in enumerate(sorted({a + b for a in SYLLABLES for b in ["", *SYLLABLES]}), 1)}
KINDS, LENGTH = 20, 12  # few, so that the tensors are tiny
WORD = re.compile(r"\w+")


def tokenize(line: str) -> list[int]:
    """Take the longest piece that is known, from left to right."""
    found = []
    for word in WORD.findall(line.lower()):
        at = 0
        while at < len(word):
            end = min(len(word), at + 4)
            while word[at:end] not in PIECES:
                end -= 1
            found.append(1 + PIECES[word[at:end]] % KINDS)
            at = end
    return found


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(KINDS + 1, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, KINDS + 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.block(self.embedding(tokens)))
        return logits


model = Model().to(device)
adamw = torch.optim.AdamW(model.parameters())
seen: Counter[int] = Counter()
for step in range(40):
    batch = [tokenize(TEXT[(step * 4 + row) % len(TEXT)])[:LENGTH] for row in range(4)]
    seen.update(token for row in batch for token in row)
    padded = [row + [0] * (LENGTH - len(row)) for row in batch]
    tokens = torch.tensor(padded).to(device)
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
    adamw.zero_grad()
    loss.backward()
    adamw.step()
