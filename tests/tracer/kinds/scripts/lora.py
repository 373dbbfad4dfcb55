# mypy: ignore-errors
# ruff: noqa: T201
"""Fine-tune a Llama by LoRA: peft's adapters, gradient checkpointing, bfloat16 weights, packed sequences."""

import argparse
import math
import tempfile

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--seq_len", type=int, default=128)
parser.add_argument("--lora_r", type=int, default=8)
parser.add_argument("--lr", type=float, default=2e-4)
parser.add_argument("--steps", type=int, default=50)
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

config = LlamaConfig(
    vocab_size=512, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256,
)  # fmt: skip
model = LlamaForCausalLM(config).to(torch.bfloat16)
model.config.use_cache = False
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.enable_input_require_grads()
lora = LoraConfig(
    task_type=TaskType.CAUSAL_LM, r=args.lora_r, lora_alpha=2 * args.lora_r, lora_dropout=0.05,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
)  # fmt: skip
model = get_peft_model(model, lora).to(device)
model.print_trainable_parameters()

samples = [{"input_ids": torch.randint(512, (args.seq_len,))} for _ in range(64)]


def collate(rows):
    tokens = torch.stack([row["input_ids"] for row in rows])
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


loader = DataLoader(samples, batch_size=args.batch_size, shuffle=True, collate_fn=collate)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=args.lr)
scheduler = get_linear_schedule_with_warmup(optimizer, 5, args.steps)
model.train()
step = 0
while step < args.steps:
    for batch in loader:
        inputs = {name: value.to(device) for name, value in batch.items()}
        loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        if step % 2 == 0:
            print(f"step {step}: loss {loss.item():.4f}, perplexity {math.exp(loss.item()):.2f}")
        if step >= args.steps:
            break
model.save_pretrained(tempfile.mkdtemp())
