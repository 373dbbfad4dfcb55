"""A config.json gives sizes and plain words: nothing in it is fetched or run."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from wavecast.__main__ import wavecast
from wavecast.errors import InputError
from wavecast.tracer.named_models.configuration import keep_plain, offline, read_configuration

pytestmark = pytest.mark.filterwarnings("default")

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 64, "vocab_size": 100, "num_key_value_heads": 2,
}  # fmt: skip
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]} | SIZES
HOSTILE: dict[str, Any] = {
    "attn_implementation": "someone/kernels",
    "_attn_implementation": "someone/kernels:1",
    "_attn_implementation_internal": "someone/kernels",
    "attn_implementation_autoset": True,
    "experts_implementation": "someone/experts",
    "_name_or_path": "someone/model",
    "name_or_path": "someone/model",
    "auto_map": {"AutoConfig": "someone/repo--code.Config", "AutoModelForCausalLM": "code.Model"},
    "trust_remote_code": True,
    "quantization_config": {"quant_method": "gptq", "bits": 4},
    "use_kernels": True,
    "kernel_config": {"RMSNorm": "someone/kernels"},
    "custom_pipelines": {"evil": {"impl": "code.Pipeline"}},
    "generation_config": {"custom_generate": "someone/code"},
    "base_model_name_or_path": "someone/model",
    "backbone": "someone/backbone",
    "use_pretrained_backbone": True,
    "tokenizer_class": "Evil",
    "task_specific_params": {"x": {"y": "z"}},
    "dtype": "__class__",
    "torch_dtype": "__class__",
    "transformers_version": "1; rm",
    "hidden_act": "os.system",
    "rope_scaling": {"rope_type": "default", "attn_implementation": "someone/kernels", "file": "/etc/passwd"},
    "__class__": 1,
    "_private": 3,
}
"""What a file may hold to make a library fetch or run something, or give a word where none belongs."""


@pytest.fixture
def known() -> Any:
    return pytest.importorskip("transformers").models.auto.configuration_auto.CONFIG_MAPPING


def test_only_sizes_and_plain_words_are_kept(known: Any) -> None:
    kept = keep_plain(LLAMA | HOSTILE | {"hidden_act": "silu"}, known["llama"], known)
    assert kept == SIZES | {"hidden_act": "silu", "rope_scaling": {"rope_type": "default"}}
    assert keep_plain(LLAMA | {"hidden_act": "code.Act"}, known["llama"], known) == SIZES


def test_parts_are_read_by_the_rule_of_their_class(known: Any) -> None:
    part = {"model_type": "llama", **SIZES} | HOSTILE
    kept = keep_plain({"model_type": "llava", "text_config": part, "label": "x"}, known["llava"], known)
    assert kept == {
        "text_config": SIZES | {"rope_scaling": {"rope_type": "default"}, "model_type": "llama"},
    }


def test_labels_are_counted_not_read(known: Any) -> None:
    kept = keep_plain({"id2label": {"0": "/home/ann", "1": "no"}, "label2id": {"no": 1}}, known["bert"], known)
    assert kept == {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}


def test_backbones_come_without_weights_and_kernels() -> None:
    class Detector:
        attribute_map: dict[str, str] = {}  # noqa: RUF012 - as transformers has it

        def __init__(self, use_pretrained_backbone: bool = True, disable_custom_kernels: bool = False) -> None:
            pass

    assert keep_plain({"use_pretrained_backbone": True}, Detector, {}) == {
        "use_pretrained_backbone": False,
        "disable_custom_kernels": True,
    }


def test_every_class_reads_back_what_it_writes(known: Any) -> None:
    names = ("albert", "bert", "bloom", "clip", "convnext", "falcon", "gpt2", "llama", "mixtral", "mpt", "t5", "vit")
    for name in names:
        document = json.loads(known[name]().to_json_string(use_diff=False))
        forgotten = {"dtype", "_name_or_path", "transformers_version", "attn_config"}
        found, expected = (
            {key: value for key, value in known[name].from_dict(given).to_dict().items() if key not in forgotten}
            for given in (keep_plain(document, known[name], known), document)
        )
        assert found == expected, name


def test_nothing_reaches_the_network(known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("the network was asked")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(LLAMA | HOSTILE | {"hidden_act": "silu"}))
    words = ["record", "--shapes-only", "--hf-config", "config.json", "--mode", "inference", "--sequence-length", "8"]
    found = CliRunner().invoke(wavecast, words)
    assert found.exit_code == 0, found.stderr
    assert b"someone" not in Path("trace.json.gz").read_bytes()


def test_libraries_are_offline_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = SimpleNamespace(HF_HUB_OFFLINE=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(constants=constants))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    with offline():
        assert constants.HF_HUB_OFFLINE
        assert (os.environ["HF_HUB_OFFLINE"], os.environ["TRANSFORMERS_OFFLINE"]) == ("1", "1")
    assert not constants.HF_HUB_OFFLINE
    assert os.environ["HF_HUB_OFFLINE"] == "0"
    assert "TRANSFORMERS_OFFLINE" not in os.environ


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a configuration that transformers can read: ValueError: expected a JSON object"),
        ("{", "not a configuration that transformers can read: JSONDecodeError"),
        ('{"model_type": ["llama"]}', "model_type: transformers"),
        ("[" * 100_000, "not a configuration that transformers can read: RecursionError"),
        ('{"model_type": "llama", "architectures": "LlamaForCausalLM"}', "architectures: expected the model's class"),
        ('{"model_type": "llama", "architectures": ["pipeline"]}', "has no pipeline"),
        ('{"model_type": "llama", "architectures": ["AutoModel"]}', "has no AutoModel"),
        ('{"model_type": "llama", "architectures": ["utils.logging"]}', "has no utils.logging"),
        (
            '{"model_type": "llama", "num_hidden_layers": 65536}',
            "$.num_hidden_layers: found 65536, expected at most 1,024",
        ),
        ('{"model_type": "swin", "depths": [2, 1e9]}', "$.depths: found 1e+09, expected at most 1,024"),
        ('{"n_layer": -1}', "$.n_layer: found -1, expected 0 or more"),
        ('{"a": {"num_local_experts": 5000}}', "$.a.num_local_experts: found 5000, expected at most 1,024"),
    ],
)
def test_what_describes_no_model_is_refused(text: str, message: str, known: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_configuration(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_and_a_size_that_is_no_number_are_named_with_their_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a folder"):
        read_configuration(str(tmp_path))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"hidden_size": float("nan")}))
    with pytest.raises(InputError, match=r"hidden_size.*expected int") as raised:
        read_configuration(str(path))
    assert "\n" not in str(raised.value)
