"""What a generation of GPU has, and that nothing else in the package asks for a capability or an architecture."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from wavecast.arrays import Mask
from wavecast.specs import generations
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.generation_rows import generation_at
from wavecast.specs.generations import generation_of
from wavecast.specs.product_kernels import SgemmKernels

HOMES = {"specs.generation_rows", "specs.generations", "specs.match"}
"""Of these, `match` compares what a framework reports with an entry."""
NAMES = {"capability", "compute_capability", "architecture"}
COMPARING = {"startswith", "endswith", "searchsorted", "digitize", "partition", "split"}


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ("3.5", "Kepler"),
        ("6.0", "Pascal GP100"),
        ("6.1", "Pascal"),
        ("7.2", "Volta"),
        ("8.7", "Ampere GA10x"),
        ("9.0", "Hopper"),
        ("10.3", "Blackwell of data centres"),
        ("12.1", "Blackwell of consumers"),
        ("99.0", "later"),
        ("gfx908", "CDNA"),
        ("gfx90a", "CDNA2"),
        ("gfx90c", "of AMD, others"),
        ("gfx1010", "of AMD, others"),
        ("gfx1030", "RDNA2"),
        ("gfx1100", "RDNA3"),
        ("gfx1102", "RDNA3 of Navi 33"),
        ("gfx1151", "RDNA3.5"),
        ("gfx1201", "RDNA4"),
        ("xe-hpc", "of another vendor"),
        ("gaudi3", "of another vendor"),
        ("gfx942", "CDNA3"),
        ("gfx950", "CDNA4"),
        ("x1", "of another vendor"),
    ],
)
def test_a_capability_is_of_the_last_generation_that_starts_below_it(capability: str, name: str) -> None:
    assert generation_at(capability).name == name


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("Blackwell Ultra", "Blackwell"),
        ("CDNA3", "CDNA3"),
        ("CDNA 3", "CDNA"),
        ("Volta", "Volta"),
        ("Imaginary", None),
        (None, None),
    ],
)
def test_an_architecture_is_of_the_generation_that_its_name_begins_with(
    architecture: str | None, name: str | None
) -> None:
    assert generation_of(architecture) == name


def test_every_catalogued_architecture_has_a_generation() -> None:
    assert all(generation_of(gpu.architecture) for gpu in load_catalog().gpus)


@pytest.mark.parametrize(
    ("predicate", "capabilities"),
    [
        (generations.is_before_volta, {"6.0", "6.1"}),
        (generations.is_hopper, {"9.0"}),
        (generations.is_blackwell, {"10.0", "10.3", "11.0"}),
        (generations.has_tensor_memory, {"10.0", "10.3", "11.0"}),
        (generations.is_async, {"9.0", "10.0", "10.3", "11.0"}),
    ],
)
def test_predicates_hold_for_their_capabilities(predicate: Callable[[Fleet], Mask], capabilities: set[str]) -> None:
    gpus = load_catalog().gpus
    found = predicate(build_fleet(gpus))
    assert {gpu.compute_capability for gpu, holds in zip(gpus, found.tolist(), strict=True) if holds} == capabilities


def test_untested_are_vendors_generations_and_shared_memory_that_nobody_measured() -> None:
    untested = {gpu.name for gpu in load_catalog().gpus if generations.why_untested(gpu) is not None}
    architectures = {gpu.architecture for gpu in load_catalog().gpus if gpu.name not in untested}
    assert architectures == {
        *("Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "Blackwell Ultra"),
        *("CDNA", "CDNA2", "CDNA3", "CDNA4"),
    }
    assert {"Radeon RX 7900 XTX", "Gaudi 3", "Arc B580", "GB10 (DGX Spark)", "Jetson AGX Orin 64GB"} <= untested
    assert not {"H100 SXM5 80GB", "GeForce RTX 5090 Laptop", "GH200 96GB (480GB LPDDR5X)"} & untested


def test_a_fleet_and_a_capability_agree() -> None:
    gpus = load_catalog().gpus
    fleet = build_fleet(gpus)
    for name in ("is_async", "has_tensor_memory", "has_tf32"):
        assert getattr(generations, name)(fleet).tolist() == [
            getattr(generation_at(gpu.compute_capability), name) for gpu in gpus
        ]
    assert generations.is_nvidia(fleet).tolist() == [gpu.vendor == "NVIDIA" for gpu in gpus]
    assert (generations.is_since_volta(fleet) | generations.is_before_volta(fleet)).tolist() == [
        gpu.vendor == "NVIDIA" for gpu in gpus
    ]
    assert generations.is_amd(fleet).tolist() == [gpu.vendor == "AMD" for gpu in gpus]
    kernels = generations.sgemm_kernels(fleet)
    assert set(kernels[generations.is_amd(fleet)].tolist()) == {SgemmKernels.AMD_MATRIX}
    assert set(kernels[generations.is_async(fleet)].tolist()) == {SgemmKernels.HOPPER}


def test_generations_of_a_fleet_are_those_of_its_capabilities() -> None:
    h100 = load_catalog().gpus[0]
    targets = ["gfx900", "gfx906", "gfx908", "gfx90a", "gfx90c", "gfx940", "gfx942", "gfx950", "gfx1010", "gfx1030"]
    targets += ["gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1151", "gfx1200", "gfx1201", "gfx1300"]
    gpus = [replace(h100, vendor="AMD", compute_capability=target) for target in targets]
    gpus += [*load_catalog().gpus, replace(h100, vendor="Intel", compute_capability="1")]
    codes = generations.generation_codes(build_fleet(gpus)).tolist()
    names = {code: generation_at(gpu.compute_capability).name for code, gpu in zip(codes[:-1], gpus, strict=False)}
    assert [names.get(code) for code in codes[:-1]] == [generation_at(gpu.compute_capability).name for gpu in gpus[:-1]]
    assert names[codes[-1]] == "of another vendor"


def test_nothing_else_compares_a_capability_or_an_architecture(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root_dir))
    modules = import_module("benchmarks.check.structure").read_modules(root_dir)
    elsewhere = [module for module in modules if module.name not in HOMES]
    assert len(elsewhere) == len(modules) - len(HOMES) > 500
    assert [f"{module.name}:{line}" for module in elsewhere for line in comparisons(module.tree)] == []


def comparisons(tree: ast.AST) -> Iterator[int]:
    """Yield the lines where something of such a name is compared, other than with None."""
    nodes = [*ast.walk(tree)]
    if not any(is_named(node) for node in nodes):
        return
    for node in nodes:
        match node:
            case ast.Compare(ops=ops) if not all(isinstance(op, ast.Is | ast.IsNot) for op in ops):
                parts = [*ast.walk(node)]
            case ast.Call(func=ast.Attribute(attr=name, value=owner), args=args) if name in COMPARING:
                parts = [owner, *args]
            case _:
                continue
        if any(is_named(part) for part in parts):
            yield node.lineno


def is_named(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in NAMES or name == "get_device_capability"


@pytest.mark.parametrize(
    "source",
    [
        "fleet.capability >= 9.0",
        "gpu.compute_capability.startswith('gfx')",
        "np.searchsorted(edges, fleet.capability)",
        "architecture == 'Volta'",
        "torch.cuda.get_device_capability(0) >= (8, 0)",
    ],
)
def test_comparisons_are_found(source: str) -> None:
    assert list(comparisons(ast.parse(source))) == [1]


@pytest.mark.parametrize("source", ["gpu.architecture is None", "generation_at(gpu.compute_capability).has_tf32"])
def test_other_uses_are_none(source: str) -> None:
    assert list(comparisons(ast.parse(source))) == []
