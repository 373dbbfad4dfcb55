# mypy: ignore-errors
# ruff: noqa: T201
"""Answer prompts with `generate()` of transformers: half precision, sampling, a cache of keys and values."""

import argparse
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--prompt-tokens", type=int, default=32)
parser.add_argument("--max-new-tokens", type=int, default=24)
args = parser.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32

config = LlamaConfig(
    vocab_size=512, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256,
)  # fmt: skip
model = LlamaForCausalLM(config).to(dtype).to(device).eval()
prompts = torch.randint(3, 512, (args.batch_size, args.prompt_tokens)).to(device)
for request in range(4):
    start = time.perf_counter()
    with torch.no_grad():
        outputs = model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=args.max_new_tokens,
            do_sample=True,
            temperature=0.8,
            top_k=50,
            pad_token_id=0,
        )
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    new_tokens = outputs.shape[1] - prompts.shape[1]
    print(f"request {request}: {new_tokens * args.batch_size / seconds:.1f} tokens/s")
    print(outputs[0, -new_tokens:].tolist())
