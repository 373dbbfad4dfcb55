"""Public profiler files that lack something, and what each is answered with: never that it ran on a CPU."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

pytestmark = pytest.mark.data

Run = Callable[..., Result]

REFUSED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "a100_cupti_range": (
        (),
        (
            "nothing to predict: the recording of a GPU ('NVIDIA A100-PG509-200', CUDA) holds 375 ops and 77 launches",
            "77 events with counters in place of times but no kernel",
            "no shapes are recorded of 375",
            "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] and record_shapes=True, without",
        ),
    ),
    "cpu_only": ((), ("4 ops (aten::empty)", "record at least one whole iteration")),
    "mtia_inference": (
        (),
        (
            "an accelerator ('ARTEMIS', mtia), no GPU of NVIDIA or AMD: it holds 10,346 ops of its host",
            "1,313 events of the device in a form that is not read",
            "`wavecast record --shapes-only`",
        ),
    ),
    "old_names_small": ((), ("does not say which GPU it was recorded on: name it with --from",)),
    "mi250_two_iterations": (
        (),
        (
            "does not name its GPU ('AMD Radeon Graphics': 104 SMs, 64 GiB, capability 9.0)",
            "may be Instinct MI210 or Instinct MI250 (1 GCD): name the one with --from",
        ),
    ),
    "mi210_gpu_only": (("--batch", "64", "--from-batch", "32"), ("--batch changes the shapes of ops", "0 ops")),
}

ANSWERED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rank_without_gpu": (
        (),
        (
            "The kernels of the GPU that was recorded are not in the file",
            "the file is of a GPU (CUDA or ROCm) and holds 2,416 ops of its host but no kernel",
            "all times come from shapes alone; record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        ),
    ),
    "mi210_gpu_only": (
        (),
        ("Measured on Instinct MI210", "kernels and no ops: without their names, shapes and phases"),
    ),
    "mi300x_vllm_graph_execution": (
        (),
        (
            "Measured on Instinct MI300X",
            "it is taken for Instinct MI300X, the only one of the catalogue with 304 SMs, 192 GiB, capability 9.4",
        ),
    ),
    "negative_queue_length": (
        ("--to", "V100 PCIe 16GB"),
        (
            "8% of the GPU time on Tesla V100 PCIe 16GB: ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
            "of the GPU time is in kernels that no recorded op launched (multi_tensor_apply_kernel)",
            "34,741 embedding lookups are taken to be spread as zipf:1.05",
            "59% of the iteration the GPU waits, or works, without anything recorded",
            "the longest stretch lasts 63.4 ms, while the host is in cudaMemcpyAsync of aten::copy_",
        ),
    ),
    "old_names_resnet50": (
        (),
        ("training, kineto trace, 3,410 ops, 1,543 kernels", "Measured on Tesla V100 DGXS 32GB: iteration 126.2 ms"),
    ),
    "old_names_small": (
        ("--from", "V100 SXM2 32GB"),
        ("0 ops, 4 kernels", "kernels and no ops: without their names, shapes and phases"),
    ),
}


def ask(run: Run, data_dir: Path, name: str, words: tuple[str, ...]) -> Result:
    asked = words if "--to" in words else (*words, "--to", "H100 SXM5 80GB")
    return run("analyze", data_dir / "traces" / "odd" / f"{name}.json.gz", "--top", "0", *asked)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_predicted_is_refused_with_what_it_holds(run: Run, data_dir: Path, name: str) -> None:
    asked, expected = REFUSED[name]
    result = ask(run, data_dir, name, asked)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "on a CPU" not in result.stderr
    for words in expected:
        assert words in result.stderr


@pytest.mark.parametrize("name", ANSWERED)
def test_what_can_be_predicted_says_what_is_missing(run: Run, data_dir: Path, name: str) -> None:
    asked, expected = ANSWERED[name]
    result = ask(run, data_dir, name, asked)
    assert result.exit_code == 0, result.output
    assert "on a CPU" not in result.stdout
    for words in expected:
        assert words in result.stdout


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("mi300x_bert_small_inference", 0.1),
        ("mi300x_bert_small_inference", 0.5),
        ("rtx2080ti_resnet_training", 0.3),
        ("rtx2080ti_resnet_training", 0.95),
        ("v100_convnet_ddp_training", 0.1),
        ("v100_convnet_ddp_training", 0.7),
    ],
)
def test_a_file_that_lost_its_end_is_of_no_cpu(
    run: Run, data_dir: Path, tmp_path: Path, name: str, share: float
) -> None:
    data = gzip.decompress((data_dir / "traces" / f"{name}.json.gz").read_bytes())
    path = tmp_path / "cut.json"
    path.write_bytes(data[: int(share * len(data))])
    result = run("analyze", path, "--recover", "--to", "H100 SXM5 80GB", "--top", "0")
    text = result.stderr if result.exit_code else result.stdout
    assert result.exit_code in (0, 2)
    assert "the file ends early: " in text
    assert "on a CPU" not in text
    assert result.exit_code == 2 or "Measured on" in text
