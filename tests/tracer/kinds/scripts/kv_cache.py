# mypy: ignore-errors
# ruff: noqa: T201
"""Generate with a hand-written transformer and a hand-written cache that is preallocated and filled token by token."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

batch = int(os.environ.get("BATCH", "2"))
prompt_length, new_tokens, max_length = 32, 16, 64
dim, heads, layers, vocabulary = 128, 4, 4, 512
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32


class Cache:
    def __init__(self):
        shape = (batch, heads, max_length, dim // heads)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    def update(self, positions, keys, values):
        self.keys[:, :, positions] = keys
        self.values[:, :, positions] = values
        return self.keys, self.values


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.wqkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.w1, self.w3 = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(dim, 4 * dim, bias=False)
        self.w2 = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x, mask, positions, cache):
        query, key, value = self.wqkv(self.norm1(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (query, key, value))
        keys, values = cache.update(positions, key, value)
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        x = x + self.wo(attended.transpose(1, 2).flatten(2))
        normed = self.norm2(x)
        return x + self.w2(F.silu(self.w1(normed)) * self.w3(normed))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocabulary, dim), nn.RMSNorm(dim)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.output = nn.Linear(dim, vocabulary, bias=False)
        self.register_buffer("causal", torch.tril(torch.ones(max_length, max_length, dtype=torch.bool)))

    def forward(self, tokens, positions, caches):
        x = self.embedding(tokens)
        mask = self.causal[None, None, positions]
        for layer, cache in zip(self.layers, caches):  # noqa: B905
            x = layer(x, mask, positions, cache)
        return self.output(self.norm(x))


def sample(logits, temperature=0.8, top_k=20):
    probabilities = torch.softmax(logits[:, -1].float() / temperature, dim=-1)
    values, _ = torch.topk(probabilities, top_k)
    probabilities = torch.where(probabilities < values[:, [-1]], 0.0, probabilities)
    return torch.argmax(probabilities / torch.empty_like(probabilities).exponential_(1), dim=-1, keepdim=True)


@torch.inference_mode()
def generate(model, prompt):
    caches = [Cache() for _ in range(layers)]
    positions = torch.arange(prompt.shape[1], device=device)
    token = sample(model(prompt, positions, caches))
    tokens = [token]
    position = torch.tensor([prompt.shape[1]], device=device)
    for _ in range(new_tokens - 1):
        token = sample(model(token, position, caches))
        tokens.append(token.clone())
        position += 1
        if (token == 0).all():
            break
    return torch.cat(tokens, dim=1)


model = Transformer().to(device=device, dtype=dtype).eval()
for run in range(3):
    start = time.perf_counter()
    answer = generate(model, torch.randint(vocabulary, (batch, prompt_length), device=device))
    if device == "cuda":
        torch.cuda.synchronize()
    print(f"run {run}: {answer.numel() / (time.perf_counter() - start):.1f} tokens/s, {answer[0].tolist()}")
