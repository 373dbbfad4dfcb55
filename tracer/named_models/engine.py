"""Lets a model of transformers run as serving engines run it: their fused ops in the place of the library's many.

Queries, keys and values are one product, and so are gate and up; norms take the residual in; rotation, gated
activation and the write to a paged cache are an op each; attention reads the cache in place. Ops bear vLLM's names, and
return what they write, so that it can be followed; SGLang's and TensorRT-LLM's do the same work. What a model has
beside these stays as transformers runs it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...errors import InputError, parameter
from ..hooks.patches import patched
from ..meta.compiled import graph_region
from ..meta.overrides import shape_like_first
from .configuration import import_library
from .inputs import Reading, check_positions, first_number
from .subject import refuse

GRAPH_TOKENS: Final = 512
"""Tokens up to which vLLM replays a step from a CUDA graph by default (`_set_cudagraph_sizes`, vllm/config/vllm.py)."""
_REFUSED: Final = (
    "{}: {} has {}, which is not written as engines run it: leave the option out, or ask wavecast serve MODEL"
)
_FEATURE_RANK: Final = 3
"""Samples, tokens, features."""
_ROTATE: Final = "apply_rotary_pos_emb"
_QUERY_KEY_VALUE: Final = ("q_proj", "k_proj", "v_proj")
_GATE_UP: Final = ("gate_proj", "up_proj")
_BLOCKS: Final = ("down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))", "self.gate_up_proj(hidden_states)")
"""What the forward of a gated block says that runs as an engine's."""
_ROUTER: Final = ("linear(hidden_states", "return router_logits, ")


def build_engine_step(reading: Reading) -> Callable[[], Any]:
    """Return a step of an engine, of text after what is cached, up to the next token of each sample.

    Raises InputError for models that are served otherwise: of an encoder, latent attention, or states.
    """
    model, count = reading.model, reading.settings.cached_tokens or 0
    refuse(reading.settings, ("attention", "reference_kernels"), f"not with {parameter('as_engine')}")
    check_positions(reading)
    transformers = import_library("transformers")
    cache = transformers.DynamicCache(config=reading.text)
    layers = {type(layer).__name__ for layer in cache.layers} - {"DynamicLayer", "DynamicSlidingWindowLayer"}
    name = next((item for item in ("cache", "past_key_values") if item in reading.accepted), None)
    why = "an encoder" if reading.config.is_encoder_decoder else None
    why = why or ("latent attention" if getattr(reading.text, "kv_lora_rank", None) else None)
    why = why or ("layers that keep no keys and values" if layers or not cache.layers else None)
    why = why or next(filter(None, map(_own_part, model.modules())), None)
    why = why or ("no next token after a cache" if name is None or "logits_to_keep" not in reading.accepted else None)
    if why is not None or name is None:
        raise InputError(_REFUSED.format(parameter("as_engine"), reading.name, why))
    tokens = reading.fill(reading.plain_id, reading.batch_size, 1 if count else reading.length)
    positions = torch.empty(tokens.shape, dtype=torch.long, device="meta")
    given = {"input_ids": tokens, name: cache, "use_cache": True, "logits_to_keep": 1}
    given |= {"position_ids": positions} if "position_ids" in reading.accepted else {}
    in_graph = tokens.numel() <= GRAPH_TOKENS
    rows = first_number(reading.text, "max_position_embeddings") or count + reading.length
    rotate, sums = partial(_rotate, {}, rows), _Sums()
    _replace_modules(model, sums)

    def predict() -> Any:
        with _engine_ops(model, transformers, count, rotate), graph_region(when=in_graph), sums:
            return model(**given).logits.float().div_(1.0).argmax(-1)  # by a temperature

    return predict


class _Sums(TorchFunctionMode):
    """Keep a sum of two tensors of features back, as the norm that reads it adds them up itself."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: tuple[Tensor, Tensor] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name != "__get__":
            self.add_up()
        is_sum = name in ("add", "__add__") and not kwargs and all(isinstance(item, Tensor) for item in args)
        if is_sum and args[0].shape == args[1].shape and args[0].dim() == _FEATURE_RANK:
            self.waiting = args
            return args[0]
        return func(*args, **(kwargs or {}))

    def add_up(self) -> None:
        """Add up what no norm took."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting[0].add_(waiting[1])


@contextmanager
def _engine_ops(model: nn.Module, transformers: Any, count: int, rotate: Callable[..., Any]) -> Iterator[None]:
    """Define the ops, and let transformers' functions call them; all is undone on leaving."""
    layer = transformers.cache_utils
    attention = transformers.modeling_utils.AttentionInterface
    experts = import_module("transformers.integrations.moe").ExpertsInterface
    masks = transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    with ExitStack() as stack:
        for namespace, schemas in _OPS.items():
            library = torch.library.Library(namespace, "FRAGMENT")
            stack.callback(library._destroy)
            for schema, shape in schemas.items():
                library.define(schema)
                library.impl(schema.partition("(")[0], shape, "Meta")
        for owner, call in ((attention, _attend), (experts, _run_experts)):
            stack.enter_context(patched(owner, "get_interface", lambda *_, call=call: call))
        stack.enter_context(patched(type(masks), "__getitem__", lambda *_: lambda **_: None))
        for kind in (layer.DynamicLayer, layer.DynamicSlidingWindowLayer):
            stack.enter_context(patched(kind, "update", lambda *given, **_: _write(count, *given)))
            stack.enter_context(patched(kind, "get_seq_length", lambda _layer: count))
        for name in sorted({type(item).__module__ for item in model.modules()}):
            if _rotates_pairs(name):
                stack.enter_context(patched(sys.modules[name], _ROTATE, rotate))
        yield


def _replace_modules(model: nn.Module, sums: _Sums) -> None:
    """Give the modules of a model the forward that engines have in their place."""
    for module in model.modules():
        kind = type(module).__name__
        weight = getattr(module, "weight", None)
        if kind.endswith("RMSNorm") and isinstance(weight, Tensor):
            module.forward = partial(_normalize, module, sums, module.forward)
        elif kind.endswith("RotaryEmbedding") and _rotates_pairs(type(module).__module__):
            module.forward = lambda _, position_ids, *_more, **_options: (position_ids, None)  # rows of a table
        elif kind.lower().endswith("topkrouter") and _says(module, all, _ROUTER):
            module.forward = partial(_route, module)
        elif all(isinstance(getattr(module, item, None), nn.Linear) for item in _QUERY_KEY_VALUE):
            _merge(module, _QUERY_KEY_VALUE)
        elif hasattr(module, "down_proj") and _says(module, any, _BLOCKS):
            if not hasattr(module, "gate_up_proj"):
                _merge(module, _GATE_UP)
            module.forward = partial(_run_block, module)


def _says(module: nn.Module, which: Callable[[Iterator[bool]], bool], parts: tuple[str, ...]) -> bool:
    source = inspect.getsource(type(module).forward)
    return which(item in source for item in parts)


def _own_part(module: nn.Module) -> str | None:
    """Return what of a module does not ask transformers' interfaces for its function; that of experts adds a method."""
    name, source = type(module).__name__, sys.modules[type(module).__module__]
    own_attention = name.endswith("Attention") and not hasattr(source, "ALL_ATTENTION_FUNCTIONS")
    own_experts = name.endswith("Experts") and not hasattr(module, "_apply_gate")
    part = "attention" if own_attention else "experts" if own_experts else ""
    return f"{part} that transformers cannot replace" if part else None


def _rotates_pairs(name: str) -> bool:
    """Say whether a module of transformers has a function that rotates queries and keys by cosines and sines."""
    found = getattr(sys.modules[name], _ROTATE, None)
    return found is not None and list(inspect.signature(found).parameters)[:4] == ["q", "k", "cos", "sin"]


def _merge(module: nn.Module, names: tuple[str, ...]) -> None:
    """Let linear layers that read the same be one product, whose parts they return."""
    parts = [getattr(module, name) for name in names]
    sizes, inner, first = [part.out_features for part in parts], parts[0].in_features, parts[0].weight
    joined = nn.Linear(inner, sum(sizes), bias=parts[0].bias is not None, device="meta", dtype=first.dtype)
    found: list[Tensor] = []

    def run(place: int, x: Tensor) -> Tensor:
        if place == 0:
            found[:] = functional.linear(x, joined.weight, joined.bias).split(sizes, -1)
        return found[place] if place + 1 < len(sizes) else found.pop()

    module.joined_projection = joined
    for place, part in enumerate(parts):
        part.forward = partial(run, place)


def _normalize(module: Any, sums: _Sums, plain: Any, x: Tensor, *rest: Any) -> Any:
    if rest:
        return plain(x, *rest)
    waiting, epsilon = sums.waiting, getattr(module, "variance_epsilon", getattr(module, "eps", 1e-6))
    if waiting is not None and waiting[0] is x:
        sums.waiting = None
        return torch.ops._C.fused_add_rms_norm(waiting[1], x, module.weight, epsilon)[0]
    return torch.ops._C.rms_norm(torch.empty_like(x), x, module.weight, epsilon)


def _rotate(
    tables: dict[int, Tensor], rows: int, query: Tensor, key: Tensor, positions: Tensor, *_: Any, **__: Any
) -> Any:
    size = query.shape[-1]
    if size not in tables:
        tables[size] = torch.empty(rows, size, dtype=query.dtype, device="meta")
    return torch.ops._C.rotary_embedding(positions, query, key, size, tables[size], True)


def _route(module: Any, x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    x = x.reshape(-1, x.shape[-1])
    logits = functional.linear(x.to(module.weight.dtype), module.weight, getattr(module, "bias", None))
    weights = x.new_empty(len(x), module.top_k)
    chosen = torch.empty_like(weights, dtype=torch.int64)
    return logits, *torch.ops._moe_C.topk_softmax(weights, chosen, torch.empty_like(chosen), logits)


def _run_block(module: Any, x: Tensor) -> Any:
    joined = module.gate_up_proj if hasattr(module, "gate_up_proj") else module.joined_projection
    both = functional.linear(x, joined.weight, joined.bias)
    return module.down_proj(torch.ops._C.silu_and_mul(both.new_empty(*both.shape[:-1], both.shape[-1] // 2), both))


def _run_experts(module: Any, x: Tensor, chosen: Tensor, weights: Tensor, *_: Any) -> Any:
    parts = [getattr(module, "gate_up_proj" if module.has_gate else "up_proj"), module.down_proj]
    turned = [part.transpose(1, 2) if module.is_transposed else part for part in parts]
    return torch.ops.vllm.outplace_fused_experts(x, *turned, weights, chosen)


def _write(count: int, layer: Any, key: Tensor, value: Tensor, *_: Any) -> Any:
    """Write new keys and values behind the cached ones, [batch, heads, tokens, size], and return all."""
    if not hasattr(layer, "rooms"):
        layer.rooms = [item.new_empty(*item.shape[:2], count + item.shape[2], item.shape[3]) for item in (key, value)]
        layer.slots = torch.empty(key.shape[0] * key.shape[2], dtype=torch.long, device="meta")
    return torch.ops._C_cache_ops.reshape_and_cache_flash(key, value, *layer.rooms, layer.slots)


def _attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **options: Any) -> tuple[Tensor, None]:
    is_causal = bool(getattr(module, "is_causal", True)) and query.shape[2] > 1
    window = options.get("sliding_window") or 0
    return torch.ops.vllm.unified_attention(query, key, value, is_causal, window).transpose(1, 2), None


def _shape_attention(query: Tensor, _key: Tensor, value: Tensor, *_: Any) -> Tensor:
    batch, heads, tokens = query.shape[:3]
    return query.new_empty(batch, tokens, heads, value.shape[-1]).transpose(1, 2)


_OPS: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    "_C": {
        "rms_norm(Tensor(a!) result, Tensor input, Tensor weight, float epsilon) -> Tensor(a!)": lambda *a: a[0],
        "fused_add_rms_norm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, float epsilon) -> "
        "(Tensor(a!), Tensor(b!))": lambda *a: a[:2],
        "rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!) key, int head_size, Tensor cos_sin_cache, "
        "bool is_neox) -> (Tensor(a!), Tensor(b!))": lambda *a: a[1:3],
        "silu_and_mul(Tensor(a!) result, Tensor input) -> Tensor(a!)": lambda *a: a[0],
    },
    "_C_cache_ops": {
        "reshape_and_cache_flash(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slots) "
        "-> (Tensor(a!), Tensor(b!))": lambda *a: a[2:4],
    },
    "_moe_C": {
        "topk_softmax(Tensor(a!) weights, Tensor(b!) chosen, Tensor(c!) rows, Tensor logits) -> "
        "(Tensor(a!), Tensor(b!))": lambda *a: a[:2],
    },
    "vllm": {
        "outplace_fused_experts(Tensor hidden_states, Tensor w1, Tensor w2, Tensor topk_weights, Tensor topk_ids) -> "
        "Tensor": shape_like_first,
        "unified_attention(Tensor query, Tensor key, Tensor value, bool is_causal, int window) -> Tensor": (
            _shape_attention
        ),
    },
}
"""By namespace: schemas, and what gives their shapes. Attention's tensors are [batch, heads, tokens, size]."""
