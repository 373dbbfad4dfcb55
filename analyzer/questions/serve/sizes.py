"""The sizes of a served model: a Hugging Face config.json, or a name of those that wavecast ships."""

import itertools
import json
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ....errors import InputError
from ....records import dataclass

MODELS_FILE: Final = Path(__file__).with_name("models.toml")
CONFIG: Final = "config.json"
WINDOWED: Final[Mapping[str, float]] = {
    "mistral": 1.0,
    "phi3": 1.0,
    "gemma2": 0.5,
    "gemma3": 5 / 6,
    "gemma3_text": 5 / 6,
    "gpt_oss": 0.5,
    "qwen2": 0.0,
    "qwen3": 0.0,
    "qwen3_moe": 0.0,
    "qwen2_moe": 0.0,
    "mixtral": 1.0,
}
"""Type of a model → share of its layers that a `sliding_window` is of, where no `layer_types` say it."""
NORMED: Final = frozenset({"qwen3", "qwen3_moe", "gemma3", "gemma3_text", "minimax_m2"})
"""Types whose queries and keys are normed head by head."""
JOINT: Final = frozenset({"minimax_m2"})
"""Types that norm queries and keys over all heads, whose sum of squares ranks add up, and route in 32 bits: vLLM's
minimax_m2.py, 2025."""
FOUR_NORMS: Final = frozenset({"gemma2", "gemma3", "gemma3_text"})
UNGATED: Final = frozenset(
    {"starcoder2", "phi", "gpt_neox", "nemotron", "arcee", "persimmon", "apertus", "nanochat", "jais2"}
)
"""Types whose blocks have no gate: up, activation, down (transformers' modeling files, 5.24)."""
TIED: Final = ("gemma", "cohere", "starcoder2", "smollm3", "ernie4_5", "lfm2")
"""Types, by their start, whose output product shares the table unless the config says otherwise (the same)."""
KNOWN: Final = frozenset(WINDOWED) | NORMED | {"llama", "deepseek_v2", "deepseek_v3", "kimi_k2", "gemma"}
REFUSED: Final[Mapping[str, str]] = {
    "index_topk": "sparse attention",
    "mamba_d_state": "state-space layers",
    "ssm_cfg": "state-space layers",
    "ssm_state_size": "state-space layers",
    "lru_width": "recurrent layers",
    "altup_num_inputs": "layers that differ as Gemma 3n's do",
    "cross_attention_layers": "cross attention",
    "linear_num_value_heads": "linear attention",
    "linear_attn_config": "linear attention",
    "interleave_moe_layer_step": "layers that differ as Llama 4's do",
    "encoder_layers": "an encoder",
    "alibi": "ALiBi",
}
"""Key that tells of what no op model here covers → what that is."""
UNSAID: Final[Mapping[str, Mapping[str, int]]] = {
    "gemma3_text": {"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
}
"""Type → sizes that published configs leave out: transformers' Gemma3TextConfig, 5.24."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Hold a decoder-only transformer's sizes; 0 where it has no such part."""

    name: str
    source: str
    """Where the sizes are from: a repository, or the file."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Of the dense layers' block."""
    vocab: int
    is_tied: bool = False
    """Whether the output product shares the embedding table."""
    experts: int = 0
    top_k: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    """Of the experts that every token passes, together."""
    dense_layers: int = 0
    """Layers without experts in a model of experts."""
    block_weights: int = 3
    """Matrices of a dense block: gate, up, down; 2 without a gate."""
    window: int = 0
    window_share: float = 0.0
    q_lora: int = 0
    kv_lora: int = 0
    """Of latent attention; the following are its heads' parts."""
    nope_dim: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    norms: int = 2
    """Of a layer, over the hidden size."""
    has_head_norms: bool = False
    has_joint_norms: bool = False
    """Whether these are over all heads, and the router is 32 bits wide."""
    precision: str = "bf16"
    """As the checkpoint has it."""
    positions: int = 0
    """Tokens that it was made for; 0: not said."""
    assumed: str = ""
    """What was assumed of it, a sentence; empty where nothing was."""

    @property
    def is_latent(self) -> bool:
        """Say whether attention caches one latent for all heads."""
        return self.kv_lora > 0

    @property
    def expert_layers(self) -> int:
        """Return the layers that have experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def attention_elements(self) -> int:
        """Return the weights of a layer's attention."""
        if self.is_latent:
            per_head = self.nope_dim + self.rope_dim
            query = (self.hidden + self.heads * per_head) * self.q_lora if self.q_lora else 0
            query = query or self.hidden * self.heads * per_head
            latent = self.hidden * (self.kv_lora + self.rope_dim)
            widened = self.kv_lora * self.heads * (self.nope_dim + self.value_dim)
            return query + latent + widened + self.heads * self.value_dim * self.hidden
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def cached_elements(self) -> int:
        """Return what a layer caches of a token."""
        return self.kv_lora + self.rope_dim if self.is_latent else 2 * self.kv_heads * self.head_dim

    @property
    def parameters(self) -> float:
        """Return the weights of the whole model."""
        dense = (self.layers - self.expert_layers) * self.block_weights * self.hidden * self.intermediate
        inner = self.experts * self.expert_intermediate + self.shared_intermediate
        experts = self.expert_layers * (3 * self.hidden * inner + self.hidden * self.experts)
        table = self.vocab * self.hidden * (1 if self.is_tied else 2)
        return float(self.layers * self.attention_elements + dense + experts + table)


def read_model(model: str | Path) -> ModelSizes:
    """Return the sizes of a config.json, of a folder that holds one, or of a name that is shipped.

    Raises InputError for what is none of these, and for layers that nothing here models.

    >>> sizes = read_model("llama-3-70b")
    >>> sizes.layers, round(sizes.parameters / 1e9, 1)
    (80, 70.6)
    """
    path = Path(model)
    if not str(model).strip():
        raise InputError("expected a model's name, its config.json or the folder of it; found an empty name")
    if path.is_dir() and not (path / CONFIG).is_file():
        raise InputError(f"{model}: the folder holds no {CONFIG}")
    path = path / CONFIG if path.is_dir() else path
    if path.is_file():
        return sizes_of(_read_file(path), name=_name_of(path), source=path.name)
    found = _shipped().get(plain_name(str(model)))
    if found is None:
        near = get_close_matches(plain_name(str(model)), _shipped(), n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise InputError(f"{model}: no such file, and no shipped model is called so; {hint}give its config.json")
    return found


def _name_of(path: Path) -> str:
    """Return what a model's file is called after: its folder, unless it has a name or that is somebody's home."""
    folder = path.resolve().parent
    is_home = folder == Path.home() or folder.parent == Path.home().parent
    return path.stem if path.name != CONFIG or is_home else folder.name


def plain_name(name: str) -> str:
    """Return what names are compared by: no owner, lower case, without what tells chat versions apart.

    >>> plain_name("meta-llama/Llama-3.1-8B-Instruct")
    'llama-3.1-8b'
    """
    short = name.rpartition("/")[2].casefold().replace("_", "-").replace(" ", "-")
    return short.removesuffix("-hf").removesuffix("-instruct").removesuffix("-it").removesuffix("-chat")


@lru_cache(maxsize=1)
def _shipped() -> Mapping[str, ModelSizes]:
    entries = tomllib.loads(MODELS_FILE.read_text(encoding="utf-8"))["model"]
    return {
        name: sizes_of(entry["config"], name=entry["names"][0], source=f"{entry['source']} config.json")
        for entry in entries
        for name in entry["names"]
    }


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        read = tomllib.loads if path.suffix == ".toml" else json.loads
        found = read(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path.name}: expected a model's config.json: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path.name}: expected a table of sizes, found {type(found).__name__}")
    return found


def sizes_of(config: Mapping[str, Any], *, name: str, source: str) -> ModelSizes:
    """Return the sizes that a config's keys say. Raises InputError for what is missing or not modelled."""
    outer, config = config, _decoder(config, name)
    kind = str(config.get("model_type") or outer.get("model_type") or "")
    kinds = [str(item) for item in config.get("layer_types") or ()]
    read = _Reader({**UNSAID.get(kind, {}), **config}, name)
    heads = read.count("num_attention_heads")
    experts = read.first("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    expert_size = read.first("moe_intermediate_size") or (read.count("intermediate_size") if experts else 0)
    shared = read.first("n_shared_experts", "num_shared_experts", "moe_num_shared_experts") * expert_size
    shared = shared or read.first("shared_expert_intermediate_size", "shared_intermediate_size")
    top_k = read.first("num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk")
    if experts and not 1 <= top_k <= experts:
        raise InputError(f"{name}: num_experts_per_tok: expected 1 to {experts}, found {top_k}")
    if heads % (read.first("num_key_value_heads") or heads):
        raise InputError(f"{name}: num_key_value_heads: expected a divisor of {heads} heads")
    if not (read.first("head_dim") or read.count("hidden_size") // heads):
        raise InputError(f"{name}: hidden_size: expected at least as many as heads ({heads}), or a head_dim")
    read.first("sliding_window")
    window, share = _window(config, kind, kinds)
    hidden, layers = read.count("hidden_size"), read.count("num_hidden_layers")
    latent = read.first("kv_lora_rank")
    dense = read.first("first_k_dense_replace", "moe_layer_start_index") if experts else 0
    assumed = "" if kind in KNOWN else f"model type {kind or 'unknown'} is taken as a transformer like Llama's"
    assumed += ", without gates" if kind in UNGATED else ""
    if outer is not config:
        assumed = "; ".join(filter(None, (assumed, "its text part alone is predicted")))
    return ModelSizes(
        name=name,
        source=source,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=read.first("num_key_value_heads") or heads,
        head_dim=read.first("head_dim") or hidden // heads,
        intermediate=read.count("intermediate_size") if not experts or dense else 0,
        vocab=read.count("vocab_size"),
        is_tied=bool(config.get("tie_word_embeddings", kind.startswith(TIED))),
        experts=experts,
        top_k=top_k,
        expert_intermediate=expert_size,
        shared_intermediate=shared,
        dense_layers=min(dense + len(config.get("mlp_only_layers") or ()), layers),
        block_weights=2 if kind in UNGATED else 3,
        window=window,
        window_share=share,
        q_lora=read.first("q_lora_rank"),
        kv_lora=latent,
        nope_dim=read.count("qk_nope_head_dim") if latent else 0,
        rope_dim=read.count("qk_rope_head_dim") if latent else 0,
        value_dim=read.count("v_head_dim") if latent else 0,
        norms=4 if kind in FOUR_NORMS else 2,
        has_head_norms=kind in NORMED,
        has_joint_norms=kind in JOINT,
        precision=_precision(outer.get("quantization_config") or config.get("quantization_config"), config),
        positions=_positions(config, read),
        assumed=assumed,
    )


def _decoder(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the part of a config that tells of the decoder. Raises InputError for layers that are not modelled."""
    forms: Mapping[str, tuple[type, str]] = {
        "text_config": (dict, "an object"),
        "quantization_config": (dict, "an object"),
        "layer_types": (list, "a list"),
        "rope_scaling": (dict, "an object"),
    }
    inner = config.get("text_config")
    found = inner if isinstance(inner, dict) and inner else config
    for table, (key, (form, words)) in itertools.product((config, found), forms.items()):
        if table.get(key) and not isinstance(table[key], form):
            raise InputError(f"{name}: {key}: expected {words}, found {str(table[key])[:60]!r}")
    for key, what in REFUSED.items():
        if found.get(key):
            raise InputError(f"{name}: {key}: {what} is not modelled")
    kinds = [str(item) for item in found.get("layer_types") or ()]
    other = next((item for item in kinds if item not in ("full_attention", "sliding_attention")), None)
    other = other or ("linear attention (attn_type_list)" if 0 in (found.get("attn_type_list") or ()) else None)
    if other is not None:
        raise InputError(f"{name}: layer_types: {other} is not modelled; full and sliding attention are")
    return found


@dataclass(frozen=True, slots=True)
class _Reader:
    """Read whole numbers of a config by key."""

    config: Mapping[str, Any]
    name: str

    def first(self, *keys: str) -> int:
        """Return the first of these that is there, 0 where none is."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
                raise InputError(f"{self.name}: {key}: expected a whole number, found {value!r}")
            return value
        return 0

    def count(self, key: str) -> int:
        """Return a number that must be there."""
        found = self.first(key)
        if not found:
            raise InputError(f"{self.name}: {key} is missing: expected a decoder-only transformer's config.json")
        return found


def _positions(config: Mapping[str, Any], read: _Reader) -> int:
    """Return the tokens that engines take: rotation by these kinds is stretched by a factor (vLLM's rule)."""
    scaling = config.get("rope_scaling") or {}
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    given = read.first("max_position_embeddings")
    if kind not in ("linear", "dynamic", "yarn") or not isinstance(factor, int | float):
        return given
    return int(factor * (_Reader(scaling, read.name).first("original_max_position_embeddings") or given))


def _window(config: Mapping[str, Any], kind: str, kinds: list[str]) -> tuple[int, float]:
    """Return the keys of a window, and the share of layers that have it."""
    window = int(config.get("sliding_window") or 0)
    if not window or config.get("use_sliding_window") is False:
        return 0, 0.0
    if kinds:
        share = kinds.count("sliding_attention") / len(kinds)
    elif config.get("sliding_window_pattern"):
        share = 1.0 - 1.0 / int(config["sliding_window_pattern"])
    else:
        share = WINDOWED.get(kind, 1.0)
    return (window, share) if share else (0, 0.0)


def _precision(quantization: Mapping[str, Any] | None, config: Mapping[str, Any]) -> str:
    """Return the checkpoint's precision by the names of `--precision`; empty where it is none of these."""
    if not quantization:
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
        return "fp16" if dtype == "float16" else "bf16"
    method = str(quantization.get("quant_method") or quantization.get("quant_algo") or "").casefold()
    text = json.dumps(quantization).casefold()
    if method == "fp8" or '"quant_algo": "fp8"' in text:
        return "fp8_block" if quantization.get("weight_block_size") else "fp8"
    if method == "mxfp4" or "nvfp4" in text:
        return "nvfp4" if "nvfp4" in text else "mxfp4"
    if '"num_bits": 4' in text or '"bits": 4' in text or '"load_in_4bit": true' in text:
        return "int4"
    if '"num_bits": 8' in text or '"bits": 8' in text:
        return "fp8" if '"float"' in text else "int8"
    return ""
