"""Times an archive of many traces as a user has it: adding to it, then each command in a process of its own.

Run: python -m benchmarks.speed.archive_speed              # 10,000 traces; exit status 1 where a bar is missed
     … --count 1000 --folder /data/archive                 # fewer; kept, and timed again where it is there already

Every trace is a small sample under another name and batch, so that no two are the same. Bars: `list` 0.5 s, `find` 1 s,
`verify` 200 MB of packed bytes a second, all with Python's start. With `--sample` another trace is the seed: of small
files `verify` shows what a file costs, of larger ones what a byte costs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from wavecast.formats.archive import init_archive, open_archive
from wavecast.formats.files.open import load_trace

SAMPLES = Path(__file__).parents[2] / "samples"
SMALL = SAMPLES / "dlrm-inference-fp32-b2048-shapes.json.gz"
NAMES = ("llama_8b", "llama_70b", "resnet50", "vit_large", "bert_base", "gpt2_small", "dlrm", "ddpm_unet")
ROUNDS = 5
LIST_S, FIND_S, VERIFY_BYTES_PER_S = 0.5, 1.0, 200e6
REPORTED = 1000
"""After so many adds their time is told: it must not grow."""


def fill(folder: Path, sample: Path, count: int) -> None:
    """Add distinct traces, and print what an add costs as the archive grows."""
    seed = load_trace(sample)
    init_archive(folder)
    with open_archive(folder) as archive:
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        for number in range(count):
            name = f"{NAMES[number % len(NAMES)]}-{number}"
            workload = replace(seed.meta.workload, name=name, batch_size=1 + number % 64)
            trace = replace(seed, meta=replace(seed.meta, workload=workload))
            archive.add(trace, tags=["nightly"] if number % 10 == 0 else [])
            if (number + 1) % REPORTED == 0:
                now_s, now_cpu_s = time.perf_counter(), time.process_time()
                print(
                    f"  adds {number + 2 - REPORTED:>6,} to {number + 1:>6,}: "
                    f"{(now_s - begin_s) / REPORTED * 1e3:.2f} ms each, of which CPU "
                    f"{(now_cpu_s - begin_cpu_s) / REPORTED * 1e3:.2f} ms",
                    flush=True,
                )
                begin_s, begin_cpu_s = now_s, now_cpu_s


def run(*words: str) -> tuple[float, str]:
    """Return the median seconds of a command in processes of its own, and what it wrote."""
    found, text = [], ""
    for _ in range(ROUNDS):
        begin_s = time.perf_counter()
        text = subprocess.run(
            [sys.executable, "-m", "wavecast", "archive", *words], check=True, capture_output=True, text=True
        ).stdout
        found.append(time.perf_counter() - begin_s)
    return median(found), text


def time_commands(folder: Path) -> int:
    """Print what each command takes; return how many bars are missed."""
    with open_archive(folder) as archive:
        entries = archive.entries()
    packed, unpacked = sum(item.packed_bytes for item in entries), sum(item.unpacked_bytes for item in entries)
    print(f"{len(entries):,} traces, {packed / 1e6:.1f} MB packed, {unpacked / 1e6:.1f} MB unpacked")
    bars = {
        "list": (("list", str(folder)), LIST_S),
        "list as JSON": (("list", str(folder), "--format", "json"), LIST_S),
        "find": (("find", str(folder), "model~llama batch>=8"), FIND_S),
        "find a tag": (("find", str(folder), "tag=nightly batch>=8 date>=2020"), FIND_S),
        "stats": (("stats", str(folder)), FIND_S),
    }
    missed = 0
    for name, (words, limit_s) in bars.items():
        seconds, text = run(*words)
        missed += seconds > limit_s
        print(f"{name:<14}{seconds:7.3f} s of {limit_s} s, {text.count(chr(10)):,} lines", flush=True)
    seconds, _ = run("verify", str(folder))
    missed += packed / seconds < VERIFY_BYTES_PER_S
    print(
        f"{'verify':<14}{seconds:7.3f} s: {packed / seconds / 1e6:.0f} MB/s packed, "
        f"{unpacked / seconds / 1e6:.0f} MB/s unpacked, {seconds / max(1, len(entries)) * 1e6:.0f} µs a trace"
    )
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--sample", type=Path, default=SMALL)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "archive"
        if not folder.exists():
            fill(folder, options.sample, options.count)
        return int(time_commands(folder) > 0)


if __name__ == "__main__":
    sys.exit(main())
