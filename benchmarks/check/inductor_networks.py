"""Networks that `inductor_joins` compiles: small ones of transformers, and some written here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from benchmarks.check.inductor_blocks import BLOCKS

Inputs = tuple[torch.Tensor, ...]
Builder = Callable[[], tuple[nn.Module, Inputs]]


def resnet() -> tuple[nn.Module, Inputs]:
    """Return transformers' ResNet, two stages of basic blocks."""
    from transformers import ResNetConfig, ResNetModel

    settings = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic")
    return Last(ResNetModel(settings)), (torch.randn(4, 3, 64, 64),)


def vit() -> tuple[nn.Module, Inputs]:
    """Return transformers' vision transformer."""
    from transformers import ViTConfig, ViTModel

    settings = ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, image_size=64
    )
    return Last(ViTModel(settings)), (torch.randn(4, 3, 64, 64),)


def bert() -> tuple[nn.Module, Inputs]:
    """Return transformers' BERT with dropout."""
    from transformers import BertConfig, BertModel

    settings = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=1000
    )
    return Last(BertModel(settings)), (torch.randint(0, 1000, (4, 32)),)


def llama() -> tuple[nn.Module, Inputs]:
    """Return transformers' Llama: RMS norm, rotary embedding, gated perceptron."""
    from transformers import LlamaConfig, LlamaModel

    settings = LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=1000
    )
    return Last(LlamaModel(settings)), (torch.randint(0, 1000, (4, 32)),)


def convnext() -> tuple[nn.Module, Inputs]:
    """Return transformers' ConvNeXt, two stages."""
    from transformers import ConvNextConfig, ConvNextModel

    settings = ConvNextConfig(hidden_sizes=[32, 64], depths=[2, 2], num_stages=2)
    return Last(ConvNextModel(settings)), (torch.randn(4, 3, 64, 64),)


def mobilenet() -> tuple[nn.Module, Inputs]:
    """Return transformers' MobileNetV2."""
    from transformers import MobileNetV2Config, MobileNetV2Model

    return Last(MobileNetV2Model(MobileNetV2Config(depth_multiplier=0.35))), (torch.randn(4, 3, 64, 64),)


def gpt2() -> tuple[nn.Module, Inputs]:
    """Return transformers' GPT-2 with dropout."""
    from transformers import GPT2Config, GPT2Model

    settings = GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=1000, n_positions=64)
    return Last(GPT2Model(settings)), (torch.randint(0, 1000, (4, 32)),)


def regnet() -> tuple[nn.Module, Inputs]:
    """Return transformers' RegNet: grouped convolutions, squeeze and excitation."""
    from transformers import RegNetConfig, RegNetModel

    settings = RegNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2], groups_width=16)
    return Last(RegNetModel(settings)), (torch.randn(4, 3, 64, 64),)


def segformer() -> tuple[nn.Module, Inputs]:
    """Return transformers' SegFormer encoder: convolutions between attention, batches of tokens and of images."""
    from transformers import SegformerConfig, SegformerModel

    settings = SegformerConfig(num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[32, 64], drop_path_rate=0.0)
    return Last(SegformerModel(settings)), (torch.randn(2, 3, 64, 64),)


def t5() -> tuple[nn.Module, Inputs]:
    """Return transformers' T5 encoder: attention spelled out with a bias by distance."""
    from transformers import T5Config, T5EncoderModel

    settings = T5Config(d_model=64, d_kv=16, d_ff=256, num_layers=2, num_heads=4, vocab_size=1000)
    return Last(T5EncoderModel(settings)), (torch.randint(0, 1000, (4, 32)),)


class Last(nn.Module):
    """Return a model's last hidden state alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Run the model."""
        return self.model(data)[0]  # type: ignore[no-any-return]


class Mixer(nn.Module):
    """A block of an MLP-Mixer."""

    def __init__(self, tokens: int = 64, width: int = 96) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.tokens = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 384), nn.GELU(), nn.Linear(384, width))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Mix tokens, then channels."""
        data = data + self.tokens(self.norms[0](data).transpose(1, 2)).transpose(1, 2)
        return data + self.channels(self.norms[1](data))  # type: ignore[no-any-return]


class Unet(nn.Module):
    """Two levels with a skip: group norm, SiLU, pooling, upsampling, concatenation."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)
        self.up, self.leave = nn.Conv2d(3 * width, width, 3, padding=1), nn.Conv2d(width, 3, 1)
        self.norms = nn.ModuleList([nn.GroupNorm(8, size) for size in (width, 2 * width, width)])

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Go down, up, and join both."""
        high = functional.silu(self.norms[0](self.enter(data)))
        low = functional.silu(self.norms[1](self.down(functional.avg_pool2d(high, 2))))
        joined = torch.cat([functional.interpolate(low, scale_factor=2.0), high], 1)
        return self.leave(functional.silu(self.norms[2](self.up(joined))))  # type: ignore[no-any-return]


class Written(nn.Module):
    """Attention and gates spelled out: softmax of masked scores, dropout, RMS norm, a residual."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.scale, self.dropout = nn.Parameter(torch.ones(width)), nn.Dropout(0.1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Attend, then gate."""
        normed = data * torch.rsqrt(data.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        query, key, value = self.qkv(normed).chunk(3, -1)
        scores = query @ key.transpose(1, 2) / 8.0
        mask = torch.ones(scores.shape[-2:], device=data.device, dtype=torch.bool).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
        data = data + self.out(self.dropout(scores.softmax(-1)) @ value)
        gated: torch.Tensor = torch.sigmoid(self.gate(data)) * self.value(data)
        return data + gated


NETWORKS: dict[str, dict[str, Builder]] = {
    "check": {
        "resnet": resnet,
        "bert": bert,
        "convnext": convnext,
        "mobilenet": mobilenet,
        "segformer": segformer,
        "t5": t5,
    },
    "development": {
        "gpt2": gpt2,
        "llama": llama,
        "vit": vit,
        "regnet": regnet,
        "mixer": lambda: (Mixer(), (torch.randn(8, 64, 96),)),
        "unet": lambda: (Unet(), (torch.randn(4, 3, 32, 32),)),
        "written": lambda: (Written(), (torch.randn(8, 32, 64),)),
        **BLOCKS,
    },
}
