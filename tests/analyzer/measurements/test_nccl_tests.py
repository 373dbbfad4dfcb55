"""Output of nccl-tests is read whatever its version, and calibrates the links of a machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.measurements.fabric import read_nccl_tests
from wavecast.analyzer.work.communication import CollectiveKind
from wavecast.errors import InputError


def ranks(count: int, per_host: int) -> str:
    return "".join(
        f"#  Rank {rank:2d} Group  0 Pid {rank + 7} on node{rank // per_host:03d} device {rank % per_host:2d} "
        f"[0x1b] NVIDIA H100 80GB HBM3\n"
        for rank in range(count)
    )


HEAD = "# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 32(factor) warmup iters: 5 iters: 20\n#\n"
UNITS = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time\n"
ROWS = """\
        1024           256     float     sum      -1    21.34    0.05    0.08      0    21.20    0.05    0.08      0
     1048576        262144     float     sum      -1    61.07   17.17   30.05      0    60.11   17.44   30.53      0
  1073741824     268435456     float     sum      -1   3950.0  271.83  475.70      0   3948.0  271.97  475.95    N/A
# Out of bounds values : 0 OK
"""


def test_ranks_hosts_device_and_times_are_read(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.log"
    path.write_text(HEAD + ranks(16, 8) + UNITS + ROWS)
    found = read_nccl_tests(path)
    assert (found.kind, found.ranks, found.hosts, found.ranks_per_host) == (CollectiveKind.ALL_REDUCE, 16, 2, 8)
    assert found.device == "NVIDIA H100 80GB HBM3"
    assert found.message_bytes.tolist() == [1024, 1048576, 1073741824]
    np.testing.assert_allclose(found.time_ns, [21340, 61070, 3.95e6])


def test_the_program_says_which_collective_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("# Collective test starting: reduce_scatter_perf\n" + ranks(8, 8) + ROWS)
    assert read_nccl_tests(path).kind is CollectiveKind.REDUCE_SCATTER


def test_bandwidths_tell_the_ranks_where_no_line_does(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(ROWS)
    found = read_nccl_tests(path)
    assert (found.kind, found.ranks, found.hosts, found.device) == (CollectiveKind.ALL_REDUCE, 8, 1, None)


def test_old_output_has_fewer_columns(tmp_path: Path) -> None:
    path = tmp_path / "all_gather_perf.log"
    path.write_text(
        ranks(4, 4)
        + "     1048576        262144     float     20.0   52.43   39.32    0e+00     19.9   52.69   39.52    0e+00\n"
        + "     4194304       1048576     float     40.0  104.86   78.64    0e+00     39.9  105.12   78.84    0e+00\n"
    )
    found = read_nccl_tests(path)
    assert (found.kind, found.ranks) == (CollectiveKind.ALL_GATHER, 4)
    assert found.time_ns.tolist() == [20_000, 40_000]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found 0"),
        ("all_reduce_perf\n" + ROWS.splitlines()[0], "found 1"),
        ("\x00\xff binary", "found 0"),
        (ROWS.replace("271.83  475.70", "0.00    0.00"), "how many ranks"),
    ],
)
def test_what_is_no_such_output_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "out.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_nccl_tests(path)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_nccl_tests(tmp_path / "none.txt")


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.log"
    path.write_text(ranks(8, 8) + ROWS.replace("float", "posit"))
    with pytest.raises(InputError, match=r"all_reduce\.log: type 'posit' is none of int8, uint8"):
        read_nccl_tests(path)
