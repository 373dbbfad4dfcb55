"""Small valid files of the other profilers, and of all that stands beside a trace: prices, machines, logs, archives.

What other profilers write is made by the builders of the tests, so that a format is written down once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from .seeds import ROOT, TABLES, Kind, Seed, write_profile

SAMPLE = "{sample}"
_SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_LLAMA = {**{"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 512}, **_SIZES}
_TO = ("--to", "h100sxm", "--format", "json")
_SERVED = ("--prompt-tokens", "32", "--output-tokens", "8", *_TO)
_SHOWN = (("show", "{file}"), ("show", "{file}", "--format", "json"))
_IMPORTED = (
    *(*_SHOWN, ("convert", "{file}", "{folder}/converted.json")),
    ("analyze", "{file}", "--from", "A100 SXM4 80GB", "--to", "L40S", "--format", "json"),
    ("analyze", "{file}", "--from", "MI300X", "--to", "H200", "--iteration", "longest", "--recover"),
)
_ARCHIVED = (
    *(("archive", "list", "{folder}"), ("archive", "verify", "{folder}"), ("archive", "stats", "{folder}")),
    *(("archive", "repair", "{folder}"), ("archive", "prune", "{folder}"), ("archive", "find", "{folder}", "ops>1")),
    ("analyze", "archive://{folder}#nightly", "--to", "L40S", "--format", "json"),
)


def build_other_seeds(folder: Path) -> list[Seed]:
    """Return the seeds; `folder` is an empty one for what must be written to be read."""
    return [*_of_profilers(folder), *_of_settings(), *_of_measured(), *_of_archives(folder), *_of_batches(folder)]


def _tests(name: str) -> ModuleType:
    """Return a module of the tests of the formats."""
    path = ROOT / "tests" / "formats" / f"{name}.py"
    spec = spec_from_file_location(f"fuzzed_{name}", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _written(folder: Path, name: str, write: Callable[[Path], Any]) -> bytes:
    path = folder / name
    write(path)
    return path.read_bytes()


def _of_profilers(folder: Path) -> Iterator[Seed]:
    def seed(name: str, data: bytes, **more: Any) -> Seed:
        return Seed(Kind.OTHER, name, data, words=_IMPORTED, **more)

    rocprof, xla, nsys = _tests("test_rocprof"), _tests("test_xla"), _tests("nsys_export")
    profile = json.loads(write_profile())
    yield seed("nsys.sqlite", _written(folder, "nsys.sqlite", lambda path: nsys.convert(profile, path)))
    tables = {}
    for name, rows in rocprof.TABLES.items():
        file = f"717_{name}.csv"
        tables[file] = _written(folder, file, lambda path, rows=rows: rocprof.write_csv(path, rows))  # type: ignore[misc]
    for name, data in tables.items():
        beside = {other: content for other, content in tables.items() if other != name}
        yield seed(name, data, beside=beside, named="717_kernel_trace.csv")
    yield seed("rocprof.json", json.dumps(rocprof.document()).encode())
    for is_split in (False, True):
        name = f"rocpd{int(is_split)}.db"
        data = _written(folder, name, lambda path, split=is_split: rocprof.write_rocpd(path, is_split=split))  # type: ignore[misc]
        yield seed(name, data)
    yield seed("xla.json", xla.trace_json())
    yield seed("a.xplane.pb", xla.xplane())
    yield seed("hlo.xplane.pb", _with_programs(xla))
    execution = _tests("test_execution_trace")
    nodes = [execution.add(5), execution.add(6, execution.C, execution.A, execution.B), execution.add(9, old=True)]
    yield seed("execution.json", execution.text(*nodes).encode())
    chakra = _tests("test_chakra")
    op, copy = chakra.node(1, 5, host=True, tid=1), chakra.node(3, 10, kind=chakra.ChakraType.MEM_STORE, tensor_size=9)
    sent = chakra.node(4, 10, 1, kind=chakra.ChakraType.COMM_COLL, comm_type=0, comm_size=4096, pg_name="0")
    yield seed("a.et", chakra.encode_chakra([op, chakra.node(2, 30, 1, stream=7), copy, sent]))
    items = [
        {"Id": 1, "Name": "aten::add", "NodeType": 4, "runtime": 5, "data_deps": [], "is_cpu_op": True},
        {"Id": 2, "Name": "k", "NodeType": 4, "runtime": 9, "data_deps": [1], "is_cpu_op": False},
    ]
    yield seed("chakra.json", json.dumps({"workload_graph": items}).encode())


def _with_programs(xla: ModuleType) -> bytes:
    """Return an XPlane file whose kernel runs an instruction of a program that it holds."""
    part, shaped = xla.part, xla.shaped
    operands = [(b"", shaped(xla.BF16, 4096, 1024)), (b"", shaped(xla.BF16, 1024, 2048))]
    program = xla.hlo("fusion.7", "dot", shaped(xla.BF16, 4096, 2048), operands, xla.DOT)
    entry = part(1, 5) + part(2, part(1, 5) + part(2, "jit_f(5)") + part(5, part(1, 1) + part(6, program)))
    names = part(5, part(1, 1) + part(2, part(2, "Hlo Proto")))
    told = {"hlo_op": "fusion.7", "hlo_module": "jit_f", "program_id": 5, "correlation_id": 7}
    planes = {"/device:GPU:0": {"Stream #13(Compute)": [("kernel", 10_000, 5_000_000, told)]}}
    return part(1, part(2, "/host:metadata") + part(4, entry) + names) + xla.xplane(planes)  # type: ignore[no-any-return]


def _of_settings() -> Iterator[Seed]:
    def seed(name: str, text: str, *words: tuple[str, ...]) -> Seed:
        return Seed(Kind.SETTINGS, name, text.encode(), words=words)

    priced = ("analyze", SAMPLE, "--prices", "{file}", "--to", "h100,l40s", "--format", "json")
    listed = ("catalog", "--prices", "{file}", "--format", "csv")
    yield seed("prices.csv", "gpu,usd_per_hour,kind,date\nH100 SXM5 80GB,2.5,on-demand,2026-09-01\nL40S,0.8,spot,\n",
               priced, listed)  # fmt: skip
    dated = 'listed_on = 2026-09-01\n[on_demand]\n"H100" = 2.5\n"L40S" = 0.8\n[spot]\n"L4" = 0.3\n'
    yield seed("prices.toml", dated, priced, listed)
    node = '[[node]]\nname = "ours"\nbased_on = "DGX/HGX H100"\nnic_gbit_per_s = 50\nusd_per_hour = 17.6\n'
    plan = ("--gpus", "16", "--plan", "dp=16", "--global-batch", "64", "--format", "json")
    scale = ("scale", SAMPLE, "--to", "h100sxm", "--node", "ours", "--cluster-file", "{file}", *plan)
    yield seed("cluster.toml", node, scale, ("catalog", "nodes", "--cluster-file", "{file}"))
    nccl = _tests_of_nccl()
    yield seed("nccl.log", nccl, ("catalog", "nodes", "DGX/HGX H100", "--nccl-tests", "{file}"),
               ("scale", SAMPLE, "--to", "h100sxm", "--nccl-tests", "{file}", *plan))  # fmt: skip
    spread = ("analyze", "{lookups}", "--indices", "{file}", *_TO)
    yield seed("bins.json", json.dumps({"bins": [[10, 90], [90, 10]]}), spread)
    yield seed("bins.csv", "rows,lookups\n10,90\n90,10\n", spread)
    yield seed(
        "config.json", json.dumps(_LLAMA), ("serve", "{file}", *_SERVED), ("serve", "{file}", "--tp", "2", *_SERVED)
    )
    yield seed("config.json", json.dumps({**_LLAMA, "num_key_value_heads": 2, "num_local_experts": 8,
               "num_experts_per_tok": 2, "model_type": "mixtral", "sliding_window": 64}),
               ("serve", "{file}", *_SERVED))  # fmt: skip
    log = ("serve", "llama-3-8b", "--requests", "{file}", *_TO)
    yield seed("log.csv", "arrival_s,prompt,output\n0,32,8\n0.5,64,4\n0.7,8,2\n", log)
    rows = [{"arrival_s": 0.1 * at, "prompt": 32, "output": 4} for at in range(3)]
    yield seed("log.jsonl", "\n".join(map(json.dumps, rows)), log)
    shares = {"tables": {f"Dlrm.tables.{at}": {"sharding": "table_wise", "ranks": [at % 2]} for at in range(26)}}
    yield seed("plan.json", json.dumps(shares), ("shard", "{lookups}", "--to", "h100sxm", "--gpus", "2", "--plan",
               "{file}", "--format", "json"))  # fmt: skip


def _tests_of_nccl() -> str:
    rank = "#  Rank {0:2d} Group  0 Pid {0} on node000 device {0:2d} [0x1b] NVIDIA H100 80GB HBM3\n"
    rows = (
        "        1024           256     float     sum      -1  21.34  0.05  0.08  0  21.20  0.05 0.08 0\n"
        "  1073741824     268435456     float     sum      -1   3950.0  271.83  475.70      0   3948.0  271.9 475.9 0\n"
    )
    return "# Collective test starting: all_reduce_perf\n" + "".join(map(rank.format, range(8))) + rows


def _of_archives(folder: Path) -> Iterator[Seed]:
    """Yield each file of an archive of two traces as what is changed, the others beside it."""
    path = folder / "archive"
    _run("archive", "init", str(path))
    samples = sorted((ROOT / "samples").glob("dcgan-*-fp32-*.json.gz"))[:2]
    _run("archive", "add", str(path), str(samples[0]), "--tag", "nightly")
    _run("archive", "add", str(path), str(samples[1]))
    yield from _folder_seeds(path, Kind.ARCHIVE, _ARCHIVED)


def _of_batches(folder: Path) -> Iterator[Seed]:
    weights = ("batch", SAMPLE, "--to", "l4", "--weights", "{file}", "-o", "{folder}/out.csv", "--jobs", "1")
    yield Seed(Kind.BATCH, "weights.csv", b"dcgan,100\n", words=(weights,))
    path = folder / "batch"
    path.mkdir()
    trace = path / "dcgan.json.gz"
    trace.write_bytes((ROOT / "samples" / "dcgan-inference-fp32-b64-shapes.json.gz").read_bytes())
    again = ("batch", "{folder}/dcgan.json.gz", "--to", "l40s", "-o", "{folder}/r.csv", "--jobs", "1")
    _run(*(word.replace("{folder}", str(path)) for word in again))
    right = (path / "r.csv").read_bytes()
    (path / "r.csv").unlink()
    for seed in _folder_seeds(path, Kind.BATCH, (again,)):
        if seed.name != trace.name:
            yield replace(seed, answers={"r.csv": right})


def _of_measured() -> Iterator[Seed]:
    """Yield what `measure` writes of an L4: the rows of that GPU in the small tables, without what `score` adds."""
    families = {}
    for name in ("matmul", "attention", "convolution", "vector"):
        table = TABLES[f"ops/{name}.parquet"]
        rows = [at for at, gpu in enumerate(table["gpu"]) if gpu == "L4"]
        left_out = ("gpu", "suspect", "source", "kernel", "kernels", "algorithm")
        columns = {column: [values[at] for at in rows] for column, values in table.items() if column not in left_out}
        state = {"driver_version": "580.1", "clocks.sm": "2040 MHz"}
        run = {"date": "2026-11-23", "wavecast": "0.1.0", "torch": "2.13.0", "cuda": "12.8", "gpu_state": state}
        families[name] = {**run, "tables": {name: columns}}
    head = {"format": "wavecast.measurements", "version": "1.0", "gpu": "L4", "device": "cuda"}
    scored = ("score", "{file}", "--format", "json")
    calibrated = ("analyze", SAMPLE, "--calibration", "{file}", "--to", "l4,l40s", "--format", "json")
    data = json.dumps({**head, "families": families}).encode()
    yield Seed(Kind.SETTINGS, "measured_ops.json", data, words=(scored, calibrated))


def _folder_seeds(path: Path, kind: Kind, words: tuple[tuple[str, ...], ...]) -> Iterator[Seed]:
    files = {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    for name, data in files.items():
        beside = {other: content for other, content in files.items() if other != name}
        yield Seed(kind, name, data, words=words, beside=beside)


def _run(*words: str) -> None:
    from click.testing import CliRunner
    from wavecast.__main__ import wavecast

    result = CliRunner().invoke(wavecast, list(words))
    if result.exit_code:
        raise RuntimeError(f"{' '.join(words)}: {result.output}")
