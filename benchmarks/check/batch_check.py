"""How well `--batch` rewrites networks that its rules were not written on: pairs of recordings of timm models.

    python -m benchmarks.check.batch_check

Every network of samples/timm.tar.xz that was recorded at several batch sizes is rescaled from the smallest to the
largest and back, and compared op by op with the recording at that size. Prints the networks that differ.
"""

from __future__ import annotations

from collections import defaultdict

from wavecast.analyzer.questions.score.recordings import list_recordings, read_recordings
from wavecast.analyzer.whatif.axis.change import with_batch
from wavecast.formats.trace.tables import Trace


def main() -> None:
    """Print each pair that differs, and the totals."""
    sizes: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for name, layout, batch in list_recordings():
        sizes[name, layout].append(batch)
    ends = {key: (min(found), max(found)) for key, found in sizes.items() if len(found) > 1}
    wanted = {(*key, batch) for key, pair in ends.items() for batch in pair}
    traces = {(item.network.name, item.layout, item.batch): item.trace for item in read_recordings(wanted)}
    pair_count, right_count, op_count, equal_count = 0, 0, 0, 0
    for key, (low, high) in sorted(ends.items()):
        for before, after in ((low, high), (high, low)):
            recorded = traces[(*key, after)]
            if len(recorded.ops.name) != len(traces[(*key, before)].ops.name):
                continue
            equal, total = _compare(with_batch(traces[(*key, before)], after).trace, recorded)
            pair_count, right_count = pair_count + 1, right_count + (equal == total)
            op_count, equal_count = op_count + total, equal_count + equal
            if equal < total:
                print(f"{key[0]:<40} {key[1]}  {before:>4} -> {after:<4}  {equal:>5} of {total:>5} ops equal")
    print(
        f"{len({name for name, _ in ends})} networks, {pair_count} pairs of batch sizes: "
        f"{right_count} equal in every op; "
        f"{equal_count:,} of {op_count:,} ops equal ({equal_count / max(op_count, 1):.2%})"
    )


def _compare(rescaled: Trace, recorded: Trace) -> tuple[int, int]:
    """Return how many ops have equal signatures, and how many there are."""
    rows = zip(rescaled.ops.signature.tolist(), recorded.ops.signature.tolist(), strict=True)
    pairs = [(rescaled.signatures[one], recorded.signatures[other]) for one, other in rows if one >= 0 and other >= 0]
    return sum(one == other for one, other in pairs), len(pairs)


if __name__ == "__main__":
    main()
