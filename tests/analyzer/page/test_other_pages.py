"""Archives, ranks and this machine as pages: drawn whole, with nothing that a terminal would act upon."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from wavecast.analyzer.asking.machine import Extra, LocalGpu, describe_machine
from wavecast.analyzer.page.encoding import table_of
from wavecast.analyzer.page.page import Page
from wavecast.analyzer.page.terminal import Screen, draw_terminal
from wavecast.analyzer.questions.archive import page as archive
from wavecast.analyzer.questions.ranks import page as ranks
from wavecast.analyzer.questions.ranks.report import (
    CollectiveRow,
    CollectiveWait,
    JobRow,
    RankRow,
    RanksReport,
    Straggler,
)
from wavecast.formats.archive.entry import Entry
from wavecast.formats.archive.verify import Fault, Finding, Verification

CheckWhole = Callable[[Page], None]
HOSTILE = "\x1b[31mname"
ENTRIES = (
    Entry(
        id="ab" * 32, workload="llama_8b", mode="training", gpu="NVIDIA H100 80GB HBM3", batch_size=8, precision="bf16",
        iteration_ns=12.5e6, iteration_count=3, recorded="2026-10-31T12:00:00Z", added="2026-11-01T12:00:00Z",
        packed_bytes=1000, unpacked_bytes=9000, tags=("nightly", "x"), note="a note", format_version="1.2",
        source_name="run.json.gz", source_sha256="cd" * 32, sequence_length=2048, rank=1, world_size=8,
    ),
    Entry(id="cd" * 32, workload=HOSTILE, capture="shapes", added="2026-11-02T12:00:00Z", format_version="1.2"),
)  # fmt: skip
RANK = RankRow(
    rank=0, gpu="A100 SXM4 80GB", iteration_ns=9e6, start_ns=0, compute_ns=6e6, transfer_ns=1e6, waiting_ns=1.5e6,
    unseen_ns=0, undivided_ns=0, idle_ns=0.5e6, loading_ns=None, kernel_count=12, last_count=1, caused_ns=0,
)  # fmt: skip
LATE = RankRow(
    rank=3, gpu="A100 SXM4 80GB", iteration_ns=9e6, start_ns=2e3, compute_ns=7.5e6, transfer_ns=1e6, waiting_ns=0,
    unseen_ns=0, undivided_ns=0, idle_ns=0.5e6, loading_ns=None, kernel_count=12, last_count=4, caused_ns=1.5e6,
)  # fmt: skip
REPORT = RanksReport(
    world_size=8, missing_rank_count=6, iteration=2, iteration_ns=9e6, replay_error=0.001, clock_error_ns=800.0,
    ranks=(RANK, LATE),
    stragglers=(
        Straggler(
            rank=3, causes=("computes 1.5 ms longer",), without_ns=7.5e6, without_low_ns=7e6, without_high_ns=8e6
        ),
    ),
    more_straggler_count=0,
    collectives=(
        CollectiveRow(
            name="allreduce", group_size=8, count=5, transfer_ns=0.8e6, unseen_ns=0.2e6, undivided_ns=None,
            waiting_ns=1.5e6,
        ),
    ),
    waits=(
        CollectiveWait(
            number=4, name="allreduce", group_size=8, end_ns=8e6, transfer_ns=0.8e6, unseen_ns=0.2e6,
            undivided_ns=None, last_rank=3, waiting_ns=(1.5e6, 0.0),
        ),
    ),
    jobs=(
        JobRow(
            gpu="H100 SXM5 80GB", iteration_ns=5e6, low_ns=4e6, high_ns=6e6, slowest_rank=3, waiting_share=0.1,
            is_source=False,
        ),
        JobRow(
            gpu="A100 SXM4 80GB", iteration_ns=9e6, low_ns=9e6, high_ns=9e6, slowest_rank=3, waiting_share=0.1,
            is_source=True,
        ),
    ),
    is_on_hosts=False,
    warnings=("a warning",),
)  # fmt: skip
FOUND = Verification(
    trace_count=2,
    packed_bytes=1000,
    unpacked_bytes=9000,
    findings=(Finding(fault=Fault.MISSING, name="ab" * 32, text="its file is missing"),),
)
VERSIONS = {"wavecast": "0.1.0", "torch": None}
GPUS = (
    LocalGpu(name="NVIDIA H100", memory_bytes=80 << 30, driver_version="550", catalogued="H100 SXM5 80GB"),
    LocalGpu(name=HOSTILE, memory_bytes=None, driver_version=None, catalogued=None),
)
EXTRAS = (Extra(name="score", adds="score", missing=("pyarrow>=16",)), Extra(name="tracer", adds="record", missing=()))
PAGES = {
    "entries": archive.describe_entries(ENTRIES),
    "no entries": archive.describe_entries([]),
    "entry": archive.describe_entry(ENTRIES[0]),
    "verification": archive.describe_verification(FOUND, "traces", 0.5),
    "ranks": ranks.describe_ranks(REPORT),
    "machine": describe_machine(VERSIONS, GPUS, EXTRAS, 111),
    "machine without GPU": describe_machine(VERSIONS, (), EXTRAS[1:], 111),
}


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_drawn_whole(name: str, assert_drawn_whole: CheckWhole) -> None:
    assert_drawn_whole(PAGES[name])
    assert "\x1b" not in draw_terminal(PAGES[name], Screen())


def test_what_matters_is_said() -> None:
    text = draw_terminal(PAGES["ranks"], Screen())
    assert "Rank 3 is waited for, 1.50 ms in all: computes 1.5 ms longer." in text
    assert "2 of 8" in text
    assert "NOT ALL WHOLE" in draw_terminal(PAGES["verification"], Screen())
    assert "pip install 'wavecast[score]'" in draw_terminal(PAGES["machine"], Screen())


def test_records_are_json_and_csv() -> None:
    assert json.loads(ranks.draw_ranks_json(REPORT))["stragglers"][0]["rank"] == 3
    assert table_of(REPORT.ranks, RankRow).to_csv().splitlines()[0].startswith("rank,gpu,iteration_ns")
    assert json.loads(archive.draw_verification_json(FOUND))["is_sound"] is False
    assert len(archive.draw_entries_csv(ENTRIES).splitlines()) == 3
