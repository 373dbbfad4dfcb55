"""Measurements of a GPU sharpen the models there, and only there, and only where left-out ones fit better."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.measurements import convolution, matmul, vector
from wavecast.analyzer.measurements.calibration import (
    FOLDS,
    calibrate_library,
    calibrated_ns,
    fit_calibration,
    learn_rates,
)
from wavecast.analyzer.measurements.rates import GpuMeasurements
from wavecast.analyzer.models.frame.parameters import GpuFactors, scale_gpus
from wavecast.analyzer.models.frame.problems import as_columns, take_problems
from wavecast.analyzer.models.library import Fitted, Library, corrected_ns, load_library, simulate
from wavecast.analyzer.models.vector.problems import VectorKernel, VectorProblems
from wavecast.errors import InputError
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet, take_gpus
from wavecast.specs.gpu import Gpu, chip_of
from wavecast.specs.match import find_gpu

pytestmark = pytest.mark.data

load_convolution_samples = cache(convolution.load_samples)
load_training_samples = cache(matmul.load_training_samples)
load_vector_samples = cache(vector.load_samples)
MakeTable = Callable[..., Path]


def gpu(name: str) -> Gpu:
    return find_gpu(load_catalog(), name)


def unseen(name: str) -> Library:
    return load_library(frozenset({chip_of(gpu(name))}))


@pytest.fixture(scope="session")
def make_tables(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeTable:
    """A directory with some rows per GPU of the public tables: `make_tables({"L40S": 60}, slower=1.5)`."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    read_table = cache(parquet.read_table)

    def make(counts: dict[str, int], *, tables: tuple[str, ...] = ("attention",), slower: float = 1.0) -> Path:
        directory = tmp_path_factory.mktemp("measured")
        (directory / "ops").mkdir()
        for name in tables:
            whole = read_table(data_dir / "ops" / f"{name}.parquet")
            parts = []
            for wanted, count in counts.items():
                rows = whole.filter(pc.equal(whole["gpu"], pa.scalar(wanted, whole["gpu"].type)))
                chosen = np.random.default_rng(1).permutation(rows.num_rows)[:count]
                parts.append(rows.take(pa.array(np.sort(chosen))))
            table = pa.concat_tables(parts)
            at = table.schema.get_field_index("latency_us")
            table = table.set_column(at, "latency_us", pc.multiply(table["latency_us"], slower))
            parquet.write_table(table, directory / "ops" / f"{name}.parquet")
        return directory

    return make


def test_few_measurements_of_an_unseen_gpu_help(make_tables: MakeTable) -> None:
    found = calibrate_library(unseen("L40S"), make_tables({"L40S": 300}), [gpu("L40S")])
    by_model = {item.model: item for item in found.corrections}
    assert set(by_model) == {"attention_prefill", "attention_decode"}
    assert by_model["attention_prefill"].is_applied
    for item in by_model.values():
        assert item.gpu == "L40S"
        assert item.error_before is not None
        assert item.error_after is not None
        assert item.is_applied == (item.error_after < item.error_before)
        assert item.is_applied or item.model not in found.library.calibrations
    assert sum(item.point_count for item in by_model.values()) <= 300


def test_a_gpu_that_is_slower_throughout_is_predicted_slower(make_tables: MakeTable) -> None:
    usual, slow = (
        {
            item.model: item
            for item in calibrate_library(unseen("L40S"), make_tables({"L40S": 200}, slower=factor)).corrections
        }
        for factor in (1.0, 1.3)
    )
    for model in usual:
        assert slow[model].factor == pytest.approx(1.3 * (usual[model].factor or 0.0), rel=0.12)


def test_a_gpu_whose_memory_is_slower_is_found_to_have_slower_memory(data_dir: Path) -> None:
    l40s, library = gpu("L40S"), unseen("L40S")
    wanted, evidence = GpuFactors(clock=1.1, bandwidth=0.85), []
    for samples in (load_training_samples(data_dir)[0], load_vector_samples(data_dir)[0]):
        rows = np.arange(0, len(samples.measured_ns), len(samples.measured_ns) // 200)
        problems, fitted = take_problems(samples.problems, rows), library.fitted[samples.model]
        fleet = take_gpus(build_fleet([l40s]), np.zeros(len(rows), dtype=np.int64))
        measured = corrected_ns(fitted, simulate(fitted, problems, scale_gpus(fleet, {"L40S": wanted})))
        evidence.append(GpuMeasurements(fitted=fitted, problems=problems, fleet=fleet, measured_ns=measured))
    found, folds = learn_rates("L40S", evidence)
    assert found is not None
    assert found.is_applied
    assert found.factors.clock == pytest.approx(1.1, rel=0.03)
    assert found.factors.bandwidth == pytest.approx(0.85, rel=0.06)
    assert found.error_after < 0.4 * found.error_before
    one, _ = learn_rates("L40S", [evidence[0], evidence[1].take(np.arange(1))])  # which a fold leaves out
    assert one is not None
    assert np.isfinite(one.error_after)
    assert len(folds) == FOLDS
    assert all(fold.bandwidth == pytest.approx(0.85, rel=0.06) for fold in folds)


def test_rates_change_models_that_nothing_measured(data_dir: Path) -> None:
    slow = replace(load_library(), factors={"L40S": GpuFactors(clock=0.5, bandwidth=0.5)}, spared=frozenset())
    spared = replace(slow, spared=frozenset({("convolution", "L40S")}))
    samples = load_convolution_samples(data_dir)[0]
    # Short events are the host's, whatever the GPU.
    problems = as_columns(take_problems(samples.problems, np.argsort(samples.measured_ns)[-5:]))
    fleet = build_fleet([gpu("L40S"), gpu("T4")])
    before, after, left = (item.predict("convolution", problems, fleet) for item in (load_library(), slow, spared))
    np.testing.assert_array_equal(after.time_ns[:, 1], before.time_ns[:, 1])
    assert (after.time_ns[:, 0] > 1.5 * before.time_ns[:, 0]).all()
    np.testing.assert_allclose(after.half_width, before.half_width)
    np.testing.assert_array_equal(left.time_ns, before.time_ns)


def test_only_the_measured_gpu_changes(make_tables: MakeTable, data_dir: Path) -> None:
    library = unseen("L40S")
    found = calibrate_library(library, make_tables({"L40S": 150}, tables=("matmul",), slower=1.3)).library
    assert set(found.calibrations["matmul"]) == {"L40S"}
    samples = load_training_samples(data_dir)[0]
    rows = np.arange(0, len(samples.measured_ns), 5000)
    problems, fleet = take_problems(samples.problems, rows), build_fleet([gpu("H100 SXM5 80GB"), gpu("L40S")])
    columns = type(problems)(**{item.name: getattr(problems, item.name)[:, None] for item in fields(problems)})
    before, after = (item.predict("matmul", columns, fleet) for item in (library, found))
    np.testing.assert_array_equal(after.time_ns[:, 0], before.time_ns[:, 0])
    assert np.median(after.time_ns[:, 1] / before.time_ns[:, 1]) > 1.1
    np.testing.assert_allclose(after.high_ns / after.time_ns, before.high_ns / before.time_ns)
    paired = found.predict("matmul", problems, take_gpus(fleet, np.ones(len(rows), dtype=np.int64)))
    np.testing.assert_allclose(paired.time_ns, after.time_ns[:, 1])


def test_what_no_measurement_speaks_for_is_left_alone(make_tables: MakeTable) -> None:
    found = calibrate_library(load_library(), make_tables({"L40S": 12}))
    assert found.library.calibrations == {}
    assert [item.factor for item in found.corrections] == [None] * len(found.corrections) != []
    assert max(item.point_count for item in found.corrections) * (FOLDS - 1) // FOLDS < 10


def test_measurements_of_one_family_alone_teach_nothing_of_the_rates(make_tables: MakeTable) -> None:
    alone, together = (
        calibrate_library(load_library(), make_tables({"L40S": 60}, tables=tables))
        for tables in (("attention",), ("attention", "matmul"))
    )
    assert alone.rates == ()
    assert alone.library.factors == {}
    assert [(item.gpu, item.is_applied) for item in together.rates] == [("L40S", "L40S" in together.library.factors)]


def test_one_table_and_the_folder_of_tables_will_do(make_tables: MakeTable) -> None:
    directory = make_tables({"L40S": 60}, tables=("attention", "matmul"))
    whole, folder, one = (
        {item.model for item in calibrate_library(load_library(), path).corrections}
        for path in (directory, directory / "ops", directory / "ops" / "attention.parquet")
    )
    assert whole == folder > one == {"attention_prefill", "attention_decode"}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere", "no such table or directory"),
        ("", "no measurements of ops"),
        ("lone.parquet", "expected a table DIR"),
    ],
)
def test_what_holds_no_measurements_is_refused(path: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "lone.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=words):
        calibrate_library(load_library(), tmp_path / path)


def test_measurements_of_other_gpus_are_refused(make_tables: MakeTable) -> None:
    with pytest.raises(InputError, match=r"measures L40S, none of which is predicted.* with to$"):
        calibrate_library(load_library(), make_tables({"L40S": 20}), [gpu("T4")])


def test_without_pyarrow_it_says_what_to_install(make_tables: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_tables({"L40S": 20})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'wavecast\[score\]'"):
        calibrate_library(load_library(), directory)


def test_what_was_measured_is_predicted_nearer_than_what_was_not(data_dir: Path) -> None:
    samples = load_training_samples(data_dir)[0]
    at = next(row for row, found in enumerate(samples.gpus) if found.name == "L40S")
    rows = np.random.default_rng(0).permutation(np.flatnonzero(samples.gpu == at))[:400]
    model, fleet = unseen("L40S").fitted["matmul"], take_gpus(build_fleet(samples.gpus), samples.gpu[rows])
    problems, measured = take_problems(samples.problems, rows), samples.measured_ns[rows]
    own = np.arange(50)
    calibration = fit_calibration(model, take_problems(problems, own), take_gpus(fleet, own), measured[own])
    wrong = np.abs(calibrated_ns(calibration, model, problems, fleet) / measured - 1)
    before = np.abs(corrected_ns(model, simulate(model, problems, fleet)) / measured - 1)
    assert wrong[50:].mean() < before[50:].mean()
    assert wrong[own].mean() < 0.75 * wrong[50:].mean()


def vector_rows(data_dir: Path, kinds: dict[VectorKernel, int]) -> VectorProblems:
    """So many problems of each kind that were measured on an A100."""
    samples = load_vector_samples(data_dir)[0]
    at = next(row for row, found in enumerate(samples.gpus) if found.name == "A100 SXM4 80GB")
    parts = [
        np.flatnonzero((samples.gpu == at) & (samples.problems.kind == kind))[:count] for kind, count in kinds.items()
    ]
    return take_problems(samples.problems, np.concatenate(parts))


def factors_after(
    model: Fitted, taught: VectorProblems, slower: dict[VectorKernel, float], asked: VectorProblems
) -> list[float]:
    """Return by what times are corrected where kernels of some kinds were measured to be slower than predicted."""
    target = build_fleet([gpu("A100 SXM4 80GB")])
    fleets = [take_gpus(target, np.zeros(len(item.kind), dtype=np.int64)) for item in (taught, asked)]
    ratio = np.array([slower.get(VectorKernel(kind), 1.0) for kind in taught.kind.tolist()])
    measured = ratio * corrected_ns(model, simulate(model, taught, fleets[0]))
    calibration = fit_calibration(model, taught, fleets[0], measured)
    plain = corrected_ns(model, simulate(model, asked, fleets[1]))
    return [float(value) for value in calibrated_ns(calibration, model, asked, fleets[1]) / plain]


def test_a_kind_of_kernel_that_is_slower_leaves_others_as_they_are(data_dir: Path) -> None:
    taught = vector_rows(data_dir, {VectorKernel.ELEMENTWISE: 40, VectorKernel.GATHER: 40, VectorKernel.TOKEN_ROPE: 40})
    asked = vector_rows(data_dir, {VectorKernel.ELEMENTWISE: 1, VectorKernel.GATHER: 1, VectorKernel.TOKEN_NORM: 1})
    stand_in = replace(take_problems(asked, np.array([0])), is_stand_in=np.ones(1))
    model = unseen("A100 SXM4 80GB").fitted["vector"]
    slow, usual, unmeasured = factors_after(model, taught, {VectorKernel.ELEMENTWISE: 1.4}, asked)
    assert slow == pytest.approx(1.4, rel=0.03)
    assert usual == pytest.approx(1.0, rel=0.03)
    assert 1.01 < unmeasured < 1.37
    assert 1.01 < factors_after(model, taught, {VectorKernel.ELEMENTWISE: 1.4}, stand_in)[0] < 1.37


def test_a_kind_of_few_measurements_leans_on_what_all_have_in_common(data_dir: Path) -> None:
    model, asked = unseen("A100 SXM4 80GB").fitted["vector"], vector_rows(data_dir, {VectorKernel.GATHER: 1})
    others = {VectorKernel.ELEMENTWISE: 40, VectorKernel.TOKEN_ROPE: 40}
    once, often = (
        factors_after(
            model, vector_rows(data_dir, {**others, VectorKernel.GATHER: count}), {VectorKernel.GATHER: 1.4}, asked
        )[0]
        for count in (1, 40)
    )
    assert 1.05 < once < 1.35 < often < 1.42


def test_kinds_of_kernel_that_are_spared_stay_as_they_are(make_tables: MakeTable, data_dir: Path) -> None:
    plain = unseen("L40S")
    found = calibrate_library(plain, make_tables({"L40S": 1000}, tables=("vector",)), [gpu("L40S")])
    assert found.corrections[0].is_applied
    own = replace(found.library.calibrations["vector"]["L40S"], spared_kinds=np.array([VectorKernel.QUANTIZE]))
    spared = replace(found.library, calibrations={"vector": {"L40S": own}})
    samples = load_vector_samples(data_dir)[0]
    at = next(row for row, item in enumerate(samples.gpus) if item.name == "L40S")
    problems = take_problems(samples.problems, np.flatnonzero(samples.gpu == at))
    fleet = take_gpus(build_fleet([gpu("L40S")]), np.zeros(len(problems.kind), dtype=np.int64))
    before, after = (library.predict("vector", problems, fleet).time_ns for library in (plain, spared))
    np.testing.assert_array_equal(before != after, problems.kind == VectorKernel.QUANTIZE_DYNAMIC)
