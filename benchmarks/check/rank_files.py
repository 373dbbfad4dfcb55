"""Prints how well ranks' files of one job align and replay together: by default those of a DLRM step on V100s.

How far the joint replay lies from each rank's iteration, how far apart ends of common collectives lie once clocks are
set by them, and what of the collectives is transfer, and waiting for recorded ranks and for those without a file.

Run: python benchmarks/check/rank_files.py ../shared/data/traces/v100_dlrm_training_rank{0,1}.json.gz
"""

from __future__ import annotations

import sys

import numpy as np


def main(places: list[str]) -> None:
    """Compare the files and print the figures."""
    from wavecast.analyzer.questions.ranks.api import ranks
    from wavecast.analyzer.recorded.waiting import align_ranks

    found = ranks(places)
    report, aligned = found.report, align_ranks(found.traces)
    numbered = sum(int((trace.collectives.sequence >= 0).sum()) for trace in found.traces)
    missing = "unknown" if report.missing_rank_count is None else str(report.missing_rank_count)
    print(f"{len(report.ranks)} ranks, {missing} without a file; {numbered} collectives have sequence numbers")
    for row in report.ranks:
        print(f"rank {row.rank}: iteration {row.iteration_ns / 1e6:.3f} ms")
    apart = np.nanmax(aligned.end_ns, axis=1) - np.nanmin(aligned.end_ns, axis=1)
    print(f"joint replay within {100 * report.replay_error:.3f} % of each rank's iteration")
    print(f"ends of {len(apart)} common collectives: {report.clock_error_ns / 1e3:.2f} µs apart (95 %), ", end="")
    print(f"{apart.max() / 1e3:.2f} µs at the most")
    for item in report.collectives:
        unseen, undivided = item.unseen_ns or 0.0, item.undivided_ns or 0.0
        print(
            f"{item.name}: {item.count} of {item.group_size or '?'} ranks, transfer {item.transfer_ns / 1e6:.3f} ms, "
            f"waiting for ranks without a file {unseen / 1e6:.3f} ms, one or the other {undivided / 1e6:.3f} ms, "
            f"recorded ranks wait {item.waiting_ns / 1e6:.3f} ms"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
