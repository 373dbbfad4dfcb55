# mypy: ignore-errors
# ruff: noqa: T201
"""Train an unconditional diffusion model: accelerate around a UNet and a noise scheduler of diffusers, with EMA."""

import os
import tempfile

import torch
import torch.nn.functional as F  # noqa: N812
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader, TensorDataset

image_size = 32
train_batch_size = int(os.environ.get("BATCH_SIZE", "8"))
num_epochs = 2
output_dir = tempfile.mkdtemp()

mixed_precision = "fp16" if torch.cuda.is_available() else "no"
accelerator = Accelerator(mixed_precision=mixed_precision, gradient_accumulation_steps=1, project_dir=output_dir)
model = UNet2DModel(
    sample_size=image_size,
    in_channels=3,
    out_channels=3,
    layers_per_block=1,
    block_out_channels=(32, 64, 64),
    down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=8,
)
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
dataset = TensorDataset(torch.rand(512, 3, image_size, image_size) * 2 - 1)
train_dataloader = DataLoader(dataset, batch_size=train_batch_size, shuffle=True)
lr_scheduler = get_cosine_schedule_with_warmup(optimizer, 10, len(train_dataloader) * num_epochs)
model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, lr_scheduler
)  # fmt: skip
ema = EMAModel(accelerator.unwrap_model(model).parameters(), decay=0.9999)
ema.to(accelerator.device)

global_step = 0
for epoch in range(num_epochs):
    model.train()
    for (clean_images,) in train_dataloader:
        noise = torch.randn(clean_images.shape, device=clean_images.device)
        timesteps = torch.randint(
            0, noise_scheduler.config.num_train_timesteps, (clean_images.shape[0],), device=clean_images.device
        ).long()  # fmt: skip
        noisy_images = noise_scheduler.add_noise(clean_images, noise, timesteps)
        with accelerator.accumulate(model):
            noise_pred = model(noisy_images, timesteps, return_dict=False)[0]
            loss = F.mse_loss(noise_pred, noise)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        ema.step(accelerator.unwrap_model(model).parameters())
        logs = {"loss": accelerator.gather(loss).mean().item(), "lr": lr_scheduler.get_last_lr()[0]}
        print(f"{global_step}: {logs}")
        global_step += 1
    if accelerator.is_main_process:
        accelerator.save_state(os.path.join(output_dir, f"epoch-{epoch}"))  # noqa: PTH118
