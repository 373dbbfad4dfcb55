"""Several writers, kills, flipped bits and a prune beside an add in a bucket: an archive there loses nothing unsaid.

The bucket is one of a server that speaks S3 and is started here (`moto_server`); it holds all in memory.

Run: python -m benchmarks.check.bucket_stress                     # all; prints counts and faults, exit status 1 on any
     … --only kills,bits --kills 20 --bits 100 --seed 3

writers   4 processes add 25 traces each, half of them the same ones, with tags of their own.
kills     `wavecast archive add` of several files gets SIGKILL at a random moment. Then `verify` finds nothing but
          harmless left-overs, and every id that was told on stdout is there and reads.
bits      One bit of an object, a trace's or of the journal, is flipped: `verify` finds it, or entries and contents are
          as they were. The bit is put back, and the archive is whole again.
prune     One process adds and another sweeps whatever no record names, however young: no trace is lost.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from wavecast.errors import InputError
from wavecast.formats.archive import changes as changes_module
from wavecast.formats.archive import init_archive, open_archive
from wavecast.formats.archive.stores.objects import Objects
from wavecast.formats.archive.verify import verify
from wavecast.formats.files.open import load_trace

from .archive_stress import SAMPLE, Kills, content, faults_of, run_checks, stress_kills, stress_writers, variant

BUCKET = "wavecast-stress"
WRITERS, ADDS = 4, 25
ADD = """
import sys
sys.stdout.reconfigure(write_through=True)
import s3fs
print("started", flush=True)
from wavecast.__main__ import main
sys.argv[0] = "wavecast"
main()
"""
"""The command line, which says when it begins."""


@contextmanager
def s3_server(scratch: Path) -> Iterator[None]:
    """Run a server with an empty bucket, and point the cloud's own configuration of this process at it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "XDG_CACHE_HOME": str(scratch),
    }
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        import fsspec

        fsspec.filesystem("s3", use_listings_cache=False).mkdir(BUCKET)
        yield
    finally:
        server.terminate()
        server.wait(timeout=30)


def made() -> str:
    """Return the URL of an empty archive."""
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    init_archive(url)
    return url


def check_writers(_options: argparse.Namespace) -> list[str]:
    return stress_writers(made(), writers=WRITERS, adds=ADDS)


def check_kills(options: argparse.Namespace) -> list[str]:
    start = (sys.executable, "-c", ADD)
    kills = Kills(place=made(), start=start, count=options.kills, seed=options.seed, after_s=(0.1, 1.3))
    with tempfile.TemporaryDirectory() as sources:
        counts, found = stress_kills(kills, Path(sources))
    print(f"kills: {dict(counts)}")
    return found


def check_bits(options: argparse.Namespace) -> list[str]:
    url, random, seed = made(), Random(options.seed), load_trace(SAMPLE)  # noqa: S311
    with open_archive(url) as archive:
        for number in range(6):
            archive.add(variant(number, seed), tags=["a", f"t{number}"], note=f"note {number}")
    before, objects = content(url), Objects(url)
    names = [item.name for item in objects.list("") if item.size_bytes]
    counts, found = Counter[str](), list[str]()
    for flip in range(options.bits):
        name = random.choice(names)
        whole = objects.get(name)
        bit = random.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        objects.put(name, bytes(flipped))
        if flip % 2:
            for index in Path(os.environ["XDG_CACHE_HOME"]).rglob("*.sqlite"):
                index.unlink()  # half of the readers come with no index
        kind = "journal" if name.startswith("journal") else "trace"
        try:
            is_found = bool(faults_of(url, deep=False))
        except InputError:
            is_found = True
        if is_found:
            counts[f"{kind}: found"] += 1
        elif content(url) == before:
            counts[f"{kind}: harmless"] += 1
        else:
            found.append(f"bit {bit} of {name}: not found, and entries or contents differ")
        objects.put(name, whole)
    found += faults_of(url) + ([] if content(url) == before else ["not as before when all bits are back"])
    print(f"bits: {dict(counts)}")
    return found


def sweep_for(url: str, seconds: float, results: multiprocessing.Queue[tuple[int, int, int]]) -> None:
    changes_module.sweep.__kwdefaults__["grace_s"] = 0.0  # type: ignore[index]
    sweeps = removed = restored = 0
    ends_s = time.monotonic() + seconds
    with open_archive(url) as archive:
        while time.monotonic() < ends_s:
            swept = archive.sweep()
            sweeps, removed, restored = sweeps + 1, removed + swept.removed_count, restored + swept.restored_count
    results.put((sweeps, removed, restored))


def check_prune(options: argparse.Namespace) -> list[str]:
    url, seed, context = made(), load_trace(SAMPLE), multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[tuple[int, int, int]] = context.Queue()
    sweeper = context.Process(target=sweep_for, args=(url, options.beside_s, results))
    sweeper.start()
    ids = set[str]()
    with open_archive(url) as archive:
        while sweeper.is_alive() and results.empty():
            ids.add(archive.add(variant(len(ids), seed)).id)
    sweeps, removed, restored = results.get(timeout=60)
    sweeper.join()
    with open_archive(url) as archive:
        lost = ids - {entry.id for entry in archive.entries()}
        unread = [item for item in verify(archive).findings if item.is_harmful]
    print(f"prune: {len(ids)} adds beside {sweeps} sweeps; {removed} objects removed early, {restored} put back")
    return [f"{len(lost)} entries lost"] * bool(lost) + [f"{item.fault.value} {item.name}" for item in unread]


CHECKS = {"writers": check_writers, "kills": check_kills, "bits": check_bits, "prune": check_prune}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CHECKS))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--bits", type=int, default=100)
    parser.add_argument("--beside-s", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, s3_server(Path(scratch)):
        return run_checks({name: partial(check, options) for name, check in CHECKS.items()}, options.only)


if __name__ == "__main__":
    sys.exit(main())
