"""Names lose what tells of a person or a machine, and nothing else."""

from __future__ import annotations

import json
import re
import time
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st
from wavecast.formats.files.open import load_trace
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.codec import encode
from wavecast.formats.trace.privacy import ADDRESS, PATH, hide_private

PRIVATE = {
    "triton_/home/ann/secret/kernel.py": "triton_<path>",
    "triton_/home/ann": "triton_<path>",
    "triton_/X/ann": "<path>",
    "file:///home/ann/secret.py": "<path>",
    "kernel_file:///ann": "<path>",
    "file:///ann": "<path>",
    r"\\server\share\ann": "<path>",
    r"\\ann": "<path>",
    r"C:\Users\ann\secret kernels\k.cu": "<path>",
    "C:/Users/ann": "<path>",
    "/ann": "<path>",
    "kernel /ann": "kernel <path>",
    "kernel(/ann)": "kernel(<path>)",
    "kernel=/ann": "kernel=<path>",
    "~/ann/x": "<path>",
    "~ann/x/y": "<path>",
    "../ann/x": "<path>",
    "home/ann": "<path>",
    "src/ann/k.py": "<path>",
    "/home/ann/my secret project/k.py": "<path>",
    "at /home/ann/my (secret), 'very' secret/k.cu:12:3": "at <path>:12:3",
    "f<(lambda at /home/ann/k.cu:12:3), 4>(int*)": "f<(lambda at <path>:12:3), 4>(int*)",
    "f<(lambda at /home/ann/a->b/secret.cu)>(int)": "f<(lambda at <path>)>(int)",
    "f</home/ann/my (secret), k.cu:7>(int*)": "f<<path>:7>(int*)",
    "f</home/ann/(secret/k.cu>(int*)": "f<<path>",
    '"/home/ann/it\'s secret" f': '"<path>" f',
    "f('/home/ann/a b', '/home/ann/secret')": "f('<path>', '<path>')",
    "f(/home/ann) and ann/secret": "f(<path>) and <path>",
    "'lambda'(int)</home/ann/x>(a, b)": "'lambda'(int)<<path>>(a, b)",
    "https://ann:secret@host/x": "<path>",
    "s3://ann/secret": "<path>",
    "smb://ann;secret@host": "<path>",
    "ann:secret@host": "<address>",
    "copy to ann@host now": "copy to <address> now",
    "ann:se(cr,et@host.example": "<address>",
    "git@host.example:ann/secret.git": "<path>",
    "%2Fhome%2Fann": "<path>",
    "ann%40host": "<path>",
    "ann\uff20host": "<address>",
    "\u2215home\u2215ann": "<path>",
}
"""What names may hold, and what is left of it."""
KEPT = (
    "at::native::operator/",
    "at::native::operator/<float>(float, float)",
    "operator/=(int)",
    "void f<int, unsigned char*>(int, unsigned char*)",
    "at::native::(anonymous namespace)::f",
    "f<lambda(float)#1>",
    "{lambda(int)#1}::operator()(int) const",
    "'lambda0'(float)::operator()(float) const",
    "f<((sizeof(int))/(4))>",
    "f<(N)/4>",
    "Torch-Compiled Region: 0/1",
    "a/b",
    "a / b",
    "meta-llama/Llama-3.1-8B",
    "N/A",
    "AMD Instinct MI250X / MI250",
    "RX 6700/6700XT/6750XT / 6800M",
    "memcpy@plt",
    "memcpy@@GLIBC_2.2.5",
    "@main",
    "?f@@YAXPEAH@Z",
    "triton_poi_fused_add_0",
    "Memcpy HtoD (Pageable -> Device)",
    "ProfilerStep#3",
    "Résumé.βeta",
)
SECRETS = re.compile("ann|secret|[Uu]sers|server|host")


@pytest.mark.parametrize(("name", "left"), PRIVATE.items())
def test_what_is_private_goes(name: str, left: str) -> None:
    assert hide_private(name) == left
    assert hide_private(left) == left
    assert not SECRETS.search(left)


@pytest.mark.parametrize("name", KEPT)
def test_names_of_code_stay(name: str) -> None:
    assert hide_private(name) == name


@given(st.text("()<>[]{}'\", ;=/0"), st.sampled_from([*PRIVATE]), st.text("()<>[]{}'\", ;=/0"))
def test_whatever_stands_around_a_path_does_not_save_it(before: str, path: str, after: str) -> None:
    assert SECRETS.search(hide_private(f"{before} {path}{after}")) is None


@pytest.mark.parametrize(
    "part",
    [
        "a", "/", "a/", " /", "a@b,", "@x,", "A1/", "A_1@", "0/1 ", "(", "<", "'", "{'", "</x>", "/.aaaa:1", "a_", "a:",
        "operator/", "\\", "%2F", "x@", ").", "~", "a.1/", "--", "/home_",
    ],
)  # fmt: skip
def test_a_long_name_takes_no_longer_than_its_length(part: str) -> None:
    """What is quadratic here would take minutes."""
    long = part * (100_000 // len(part))
    for name in (long, f"{long}/home/ann", f"/x {long}"):
        begin = time.process_time()
        hide_private(name)
        assert time.process_time() - begin < 3


def test_an_import_holds_nothing_private() -> None:
    """Every text of a profiler file, private: names of all kinds of events, arguments, devices and the header."""
    names = [*PRIVATE]
    events = []
    for at, name in enumerate(names):
        span = {"ph": "X", "ts": at * 10, "dur": 5, "pid": 1, "tid": 1}
        inputs = {"Input Dims": [[2], []], "Input type": ["float", name], "Concrete Inputs": ["", name]}
        events += [
            span | {"cat": "cpu_op", "name": name, "args": {"External id": at, "Call stack": name, **inputs}},
            span | {"cat": "user_annotation", "name": name},
            span | {"cat": "user_annotation", "name": f"ProfilerStep#{name}"},
            span | {"cat": "python_function", "name": f"nn.Module: {name}", "args": {"Python module id": at}},
            span | {"cat": "cpu_op", "name": f"wavecast.module: {name}"},
            span | {"cat": "cuda_runtime", "name": name, "args": {"correlation": at}},
            span | {"cat": "cuda_sync", "name": name, "args": {"cuda_sync_kind": name}},
            span
            | {
                "cat": "kernel", "name": name, "pid": 0, "tid": 7,
                "args": {
                    "correlation": at, "device": 0, "stream": 7, "Collective name": name, "dtype": name,
                    "Process Group Name": name, "Process Group Description": name, "Process Group Ranks": name,
                },
            },
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": name}},
        ]  # fmt: skip
    secret = {name: name for name in names}
    document = {
        "traceEvents": events,
        "traceName": names[0],
        "deviceProperties": [{"id": 0, "name": f"GPU {names[0]}", **secret}],
        "distributedInfo": {"rank": 0, "nccl_version": names[0], "backend": names[0], "pg_config": secret},
        **secret,
    }
    trace = import_kineto(json.dumps(document).encode())
    assert {PATH, ADDRESS} < set(trace.strings)
    assert trace.devices[0].name == "GPU triton_<path>"
    found = SECRETS.search(encode(trace).decode())
    assert found is None, found


class Named(msgspec.Struct):
    name: object = None
    cat: object = None


class Document(msgspec.Struct):
    traceEvents: list[Named] = []  # noqa: N815
    deviceProperties: list[Named] = []  # noqa: N815


def names_in(path: Path) -> set[str]:
    """Return the names of all events but Python's frames, which are not imported, or the strings of our own trace."""
    if path.parent.name == "samples":
        return set(load_trace(path).strings)
    data = zlib.decompressobj(31).decompress(path.read_bytes()).decode(errors="replace").encode()
    text = data.translate(bytes(32 if code < 32 else code for code in range(256)))
    if text.lstrip().startswith(b"["):
        document = Document(traceEvents=msgspec.json.decode(text, type=list[Named]))
    else:
        document = msgspec.json.decode(text, type=Document)
    named = [event for event in document.traceEvents if event.cat != "python_function"] + document.deviceProperties
    return {item.name for item in named if isinstance(item.name, str)}


@pytest.mark.data
def test_no_name_in_public_traces_changes(data_dir: Path, root_dir: Path) -> None:
    paths = [*(data_dir / "traces").glob("*.json.gz"), *(data_dir / "traces" / "odd").glob("*.json.gz")]
    names = set[str]().union(*map(names_in, [*paths, *(root_dir / "samples").glob("*.json.gz")]))
    assert len(names) > 1000
    assert [name for name in names if hide_private(name) != name] == []
