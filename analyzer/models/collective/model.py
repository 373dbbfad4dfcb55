"""Collectives: what starts them, what passes through links and switches, and the NICs between machines.

Within a machine of linked GPUs, of n ranks with a message of S bytes (nccl-tests' convention), B a GPU's way out:

    V = S * 2(n-1)/n of an all-reduce, S * (n-1)/n of others, S * (1 + 1/n) of an all-reduce inside the switches
    F = (latency * a_kind + rank_us * b_kind * depth(n)) * later * 1.98 GHz / clock
    T = V / (B * efficiency * e_kind * growth^(log2 n - 2)) * (1 + (V0 / V)^s)
    t = (F^p + T^p)^(1/p)

F is what a message of no bytes takes: kernels start, and flags pass through n ranks, in cycles, more of them by links
newer than NVLink 4. T is a ring's time at full rate, and what filling the pipeline adds: V0 bytes, which stand for
NCCL's protocols (LL, LL128, Simple), whose bounds on the message blur into one smooth curve, but for two steps of F
that are seen on every generation: `settled` at a few kB per rank, `simple` at about 2 MB. s < 1: a larger message is
never faster, nor a better link slower. Latency, depth, efficiency and V0 differ by the links' generation; one that
nobody measured has what the others share.

Between machines a ring enters and leaves each by the NICs of its ranks there; an all-reduce inside the switches sends
the sum of each machine alone:

    T = (T_links^4 + (V_nic / (ranks here * NIC * efficiency))^4)^(1/4) * (1 + (steps_us * rate / V)^s)

steps_us: the hops of a ring, or of a tree where that takes less; those of few bytes hide in the start. A pair of
machines that only sends to and fro has a part of a NIC's rate, since few channels serve a peer.

Through a PCIe host, ranks share what the CPU forwards, and a ring of f flows (pairs on a bridge send one) has

    rate = host * efficiency / (f / 2)^sharing, at most what the sockets' link carries

Behind PCIe switches nothing is shared. How much a CPU forwards no datasheet says: the interval is widened by as much
as boxes of one description are found to differ.
"""

from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass
from ....specs.fabric import Fabric, LinkKind, switches_add
from ....specs.fleet import Fleet
from ....specs.generations import has_engine_all_reduce, is_async
from ...work.communication import CollectiveKind, Implementation
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from .experts import COPIED_BYTES_PER_S, PARAMETERS as EXPERT_PARAMETERS, exchange_s, later_ratio, nic_bytes_per_s
from .problems import GROUPS, OWN, CollectiveProblems, group, is_kind, neighbours, wire_bytes

HOST_HALF_WIDTH: Final = 0.55
HOST_FLOWS_HALF_WIDTH: Final = 0.75
"""90 % half-widths, natural log, of the rate through a host: between two boards, and for each doubling of the flows
that share it. Declared: pairs have 0.36 to 0.77 of PCIe's rate (RTX 6000 Ada, L40S, A100 and H100), fours 0.16 to
0.70, eights 0.04 to 0.60, by the sources of `host_sharing`; the slowest of these set it."""

PARAMETERS: Final = (*priors("collective"), *EXPERT_PARAMETERS)
"""Within a machine the priors are those of a study of the same tables (nccl-tests on A100, H100, B200), so that node
types left out are left out of the fit, not of the form. Between machines they were read off one cluster (xxrjun's, 2
to 10 machines of eight H100s): what a ring's hop and a pair's share is were seen there before its own errors were
counted. `fill_sharpness` x stands for s = x / (1 + x), which stays below 1.

`host_efficiency`: part of PCIe's rate that two boards, or two pairs on bridges, have through the host: the geometric
mean of four boxes (RTX 6000 Ada 0.36, L40S 0.64, bridged A100 0.75 and H100 0.77: the tables' largest all-reduces). All
but declared, as the sharing is: boxes differ more than the few that are measured can tell, and these four are no test.

`host_sharing`: how the rate of a PCIe ring falls with its flows: mean of what boxes of eight show against 0.6 of the
host's rate. nccl-tests' all-reduce of eight on boards straight at the processors, as parts of one board's PCIe rate:
0.44 (RTX 5090s, NVIDIA/nccl issue 1639: 28 of 63 GB/s, and 35 among four), 0.35 and, with more channels, 0.60 (RTX PRO
6000s on two EPYCs, voipmonitor/rtx6kpro hardware/pcie-bandwidth.md: 22.2 and 37.6 of 63), 0.04 (L40S of the tables: 1.4
of 31.5): exponents 0.2, 0.4, 0 and 1.9. Behind switches there are 0.63 and 0.65 (the same page): as two boards have.
Four RTX 4090s have 0.57 through the processor's memory, 0.70 past it (NVIDIA/nccl issue 1603: 18 and 22 GB/s). So PCIe
4 has 8 GB/s among eight, 19 behind switches. Not fitted: the one box of the tables is the slowest of all that are
known, and counts as one of four. Iterations on such boxes set no number here."""

GENERATIONS: Final = tuple(f"NVLink {number}" for number in range(1, 7))
CLASSES: Final = (*GENERATIONS, "no NVLink")
REFERENCE_BYTES_PER_S: Final = 450e9
"""The rate at which bytes that fill a pipeline are stated: NVLink 4's."""
REFERENCE_CLOCK_HZ: Final = 1.98e9
"""Of H100, at which waiting is stated: A100's nccl-tests of few bytes take 1.4 to 1.6 times as long, its cycles 1.4."""
MEASURED_DEPTH: Final = 3.0
"""log2 of the ranks up to which anything within one domain was measured; beyond, efficiency stays and latency grows
with log2 n alone, as a tree's does."""
OWN_LAUNCH_US: Final = 2.5
"""Of a framework's, what neither clock nor links shorten: by vLLM's 256 bytes of 2 A100s, H100s and B200s, in sight."""
FEWER_BLOCKS: Final = 24.0 / 36.0
"""Those of TensorRT-LLM's all-reduce in two steps over vLLM's and SGLang's (`MAX_ALL_REDUCE_BLOCKS`, `kMaxBlocks`)."""
OWN_BYTES: Final = 8.0 * 2**20
"""Of a message; larger ones frameworks leave to NCCL (vLLM's and SGLang's `max_size`)."""
HOP_BYTES: Final = 1e6
"""Sent by a rank, from where on hops between machines count in full: what is less, protocols for few bytes pass on
within the start's time. Read off Snellius' messages below 16 MB, whose errors are therefore no test; those above change
by 6 % of a hop."""
LINKS_NORM: Final = 4.0
SENDING_PEERS: Final = 1.8
"""Peers' worth of a NIC that one way of a send has: half a NIC's rate on the one cluster that the prior was read off;
vidur's sends, one way at a time, reach 0.6 and 0.7 of 12.5 and 50 GB/s."""
MICRO: Final = 1e-6


def gpu_class(fleet: Fleet) -> Codes:
    """Return the class of each GPU by its links' generation."""
    generation = fleet.fabric.link_generation
    linked = (fleet.fabric.link_kind == LinkKind.NVLINK) & (generation >= 1)
    return np.where(linked, np.clip(generation, 1, len(GENERATIONS)) - 1, len(GENERATIONS)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a group's ranks stand, arrays over problems and GPUs."""

    here: Floats
    """Ranks that need no NIC between them."""
    linked: Floats
    """Those of them that links join to each other, at least 1."""
    machines: Floats
    """Such sets of ranks."""
    is_linked: Mask
    """Whether links join all of `here`, not the host."""
    link_bytes_per_s: Floats
    """What a GPU of them sends to the others."""
    sums_in_switch: Mask


def simulate(problems: CollectiveProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:  # noqa: ARG001
    """Return times of a collective whose ranks all start at once, without waiting for the last of them."""
    p, v, fabric = problems, values, fleet.fabric
    place = _place(p, fabric)
    levels = np.log2(np.maximum(place.here, 1.0))
    known = np.minimum(levels, MEASURED_DEPTH)
    depth = known ** v["depth_exponent"] * np.maximum(levels / MEASURED_DEPTH, 1.0)
    start = v["latency_us"] * _by_kind(p, v["shift_latency_ratio"], v["exchange_latency_ratio"])
    ranks = v["rank_us"] * _by_kind(p, v["shift_rank_ratio"], v["exchange_rank_ratio"]) * depth
    step = 1e3 * v["settled_kb"] * place.here / np.maximum(p.message_bytes, 1.0)
    settled = 1.0 + np.where(_is_exchange(p), 0.0, v["settled_ratio"]) / (1.0 + step * step)
    fixed_s = np.asarray(MICRO * (start + ranks) * settled * _slowness(fleet, v) * fabric.link_latency_ratio)
    within_s = np.where(place.is_linked, _linked_s(p, fabric, v, place, fixed_s), _hosted_s(p, fabric, v, place))
    is_own = place.is_linked & np.isin(p.implementation, OWN) & has_engine_all_reduce(fleet)
    within_s = np.where(is_own, np.minimum(_own_s(p, fleet, v, place), within_s), within_s)
    time_s = np.where(place.machines > 1.0, _between_s(p, fabric, v, place, fixed_s), within_s)
    moved_s = exchange_s(p, fabric, v, place.here, place.link_bytes_per_s)
    time_s = np.where(is_kind(p, CollectiveKind.DISPATCH, CollectiveKind.COMBINE), moved_s, time_s)
    time_ns = 1e9 * np.where(p.ranks > 1.0, time_s, 0.5 * fixed_s)
    # The host may forward e^width times as slowly, which the part of the time in which it does takes longer by.
    width = HOST_HALF_WIDTH + HOST_FLOWS_HALF_WIDTH * _host_doublings(p, fabric, place)
    moving_ns = 1e9 * wire_bytes(p) / _host_bytes_per_s(p, fabric, v, place)
    is_hosted = ~place.is_linked & (place.here > 1.0) & (fabric.link_bandwidth_ratio == 1.0)
    slower = np.log1p(np.minimum(moving_ns / np.maximum(time_ns, 1.0), 1.0) * np.expm1(width))
    unstated = np.where(is_hosted & (p.ranks > 1.0), slower, 0.0)
    return Estimate(time_ns=time_ns, features=np.zeros((*time_ns.shape, 0)), unstated=unstated)


def _place(p: CollectiveProblems, fabric: Fabric) -> _Place:
    domain = np.maximum(fabric.domain_gpu_count, 1.0)
    island = np.maximum(domain, fabric.node_gpu_count)
    here, linked = neighbours(p, island), neighbours(p, domain)
    reached = np.where(fabric.has_switch, 1.0, (np.maximum(here, 2.0) - 1.0) / np.maximum(domain - 1.0, 1.0))
    link = fabric.link_bytes_per_s * fabric.link_bandwidth_ratio * np.minimum(reached, 1.0)
    host = fabric.host_bytes_per_s * fabric.link_bandwidth_ratio
    is_linked = (linked >= here) & (fabric.link_bytes_per_s > 0) & (domain > 1.0)
    return _Place(
        here=here,
        linked=np.where(fabric.link_bytes_per_s > 0, linked, 1.0),
        machines=np.ceil(p.ranks / here),
        is_linked=is_linked,
        link_bytes_per_s=np.maximum(np.where(is_linked, link, host), 1e9),
        sums_in_switch=switches_add(fabric) & (here > 2.0) & is_kind(p, CollectiveKind.ALL_REDUCE),
    )


def _slowness(fleet: Fleet, v: Values) -> Floats:
    """Return what a rank takes to hear of others over what it takes at the reference clock, by NVLink 4."""
    return np.asarray(later_ratio(fleet.fabric, v) * REFERENCE_CLOCK_HZ / fleet.clock_hz)


def _is_exchange(p: CollectiveProblems) -> Mask:
    """Say which are of pairs of ranks, each on its own way."""
    return is_kind(p, CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND_RECEIVE)


def _by_kind(p: CollectiveProblems, shift: Floats, exchange: Floats) -> Floats:
    """Return 1 for an all-reduce, and the given figures for collectives that pass data on, in turn or all to all."""
    others = np.where(is_kind(p, CollectiveKind.ALL_TO_ALL), exchange, shift)
    return np.where(is_kind(p, CollectiveKind.ALL_REDUCE), 1.0, others)


def _linked_s(p: CollectiveProblems, fabric: Fabric, v: Values, place: _Place, fixed_s: Floats) -> Floats:
    """Return times by links within one domain: of a ring, or inside the switches where that is less."""
    # NCCL picks a ring or, where switches can add, the switches' own sums; the quicker one is taken. Growth is by the
    # doublings beyond four GPUs, where most measurements stand; `fill`, half of whose rate is reached, by the rate.
    levels, rate = np.minimum(np.log2(np.maximum(place.here, 2.0)), MEASURED_DEPTH), place.link_bytes_per_s
    per_reference = rate / REFERENCE_BYTES_PER_S
    volume = np.maximum(wire_bytes(p), 1.0)
    is_send = is_kind(p, CollectiveKind.SEND_RECEIVE)
    exchange = v["exchange_efficiency"] * v["exchange_growth"] ** (levels - 2.0)
    exchange = np.where(is_send, v["send_efficiency"], exchange)
    shift = v["shift_efficiency"] * np.where(place.here > 2.0, 1.0, v["shift_pair_ratio"])
    ring = v["ring_growth"] ** (levels - 2.0)
    efficiency = v["link_efficiency"] * np.where(_is_exchange(p), exchange, ring * _by_kind(p, shift, exchange))
    exchange = np.where(is_send, v["send_fill_ratio"], v["exchange_fill_ratio"])
    is_sum = is_kind(p, CollectiveKind.ALL_REDUCE)
    fill = np.where(_is_exchange(p), exchange, np.where(is_sum, v["sum_fill_ratio"], 1.0))
    fill = 1e3 * v["ring_fill_kb"] * v["fill_ratio"] * fill
    fill = fill * v["ring_fill_growth"] ** (levels - 2.0) * per_reference * fabric.link_latency_ratio
    norm = np.where(is_sum, v["sum_norm"], v["ring_norm"])
    ring = volume / (rate * np.minimum(efficiency, 1.0))
    step = 1e6 * v["simple_mb"] / volume
    simple = np.where(_is_exchange(p), 0.0, v["simple_ratio"]) / (1.0 + step * step)
    ring_s = _joined(fixed_s * (1.0 + simple), ring * (1.0 + (fill / volume) ** _below_one(v["fill_sharpness"])), norm)
    summed = np.maximum(p.message_bytes * (1.0 + 1.0 / place.here), 1.0)
    fill = 1e6 * v["switch_fill_mb"] * v["switch_fill_growth"] ** (levels - 2.0) * per_reference
    fill = fill * fabric.link_latency_ratio
    rate = rate * v["link_efficiency"] * v["switch_efficiency"] * v["switch_growth"] ** (levels - 2.0)
    switch = summed / rate * (1.0 + (fill / summed) ** _below_one(v["switch_sharpness"]))
    switch_s = _joined(fixed_s, switch, v["switch_norm"])
    return np.where(place.sums_in_switch, np.minimum(ring_s, switch_s), ring_s)


def _own_s(p: CollectiveProblems, fleet: Fleet, v: Values, place: _Place) -> Floats:
    """Return times of a framework's all-reduce: each rank reads all others' buffers, or a part, then the sums."""
    # Few blocks keep NVLink 4 busy, not more, but TensorRT-LLM's that read all.
    fabric, others, is_newest = fleet.fabric, place.here - 1.0, p.implementation == Implementation.TENSORRT_LLM
    copied = np.minimum(place.link_bytes_per_s, COPIED_BYTES_PER_S)
    part_rate = copied * v["own_scatter_efficiency"] * np.where(is_newest, FEWER_BLOCKS, 1.0)
    slowness = _slowness(fleet, v)
    start = OWN_LAUNCH_US + (v["own_latency_us"] + v["own_rank_us"] * others * fabric.link_latency_ratio) * slowness
    start = start * np.where(is_newest & is_async(fleet), v["own_sooner_ratio"], 1.0)
    read = p.message_bytes * others / (np.where(is_newest, place.link_bytes_per_s, copied) * v["own_read_efficiency"])
    parts = MICRO * v["own_scatter_us"] * slowness + 2.0 * p.message_bytes * others / place.here / part_rate
    return np.where(p.message_bytes <= OWN_BYTES, MICRO * start + np.minimum(read, parts), np.inf)


def _hosted_s(p: CollectiveProblems, fabric: Fabric, v: Values, place: _Place) -> Floats:
    """Return times through the host, whose rate the ranks share."""
    start = v["host_latency_us"] + v["host_rank_us"] * (place.here - 1.0)
    fixed = MICRO * start * fabric.link_latency_ratio
    return _joined(fixed, wire_bytes(p) / _host_bytes_per_s(p, fabric, v, place), v["host_norm"])


def _host_bytes_per_s(p: CollectiveProblems, fabric: Fabric, v: Values, place: _Place) -> Floats:
    """Return the rate of a ring, or of pairs, through the host, and between its sockets."""
    doublings = _host_doublings(p, fabric, place)
    pair = np.where(fabric.link_kind == LinkKind.PCIE, fabric.pair_bytes_per_s, np.inf)
    rate = np.minimum(fabric.host_bytes_per_s, pair) * v["host_efficiency"] / 2.0 ** (doublings * v["host_sharing"])
    crossing = np.where(_is_exchange(p), np.maximum(place.here / 4.0, 1.0), 1.0)
    socket = np.where(place.here > fabric.node_gpu_count / 2.0, fabric.socket_bytes_per_s / crossing, np.inf)
    return np.maximum(np.minimum(rate, socket) * fabric.link_bandwidth_ratio, 1e6)


def _host_doublings(p: CollectiveProblems, fabric: Fabric, place: _Place) -> Floats:
    """Return log2 of how many times two flows share the host: a ring enters and leaves what links join but once."""
    flows = np.where(_is_exchange(p), place.here, place.here / place.linked)
    return np.where(fabric.has_host_switch, 0.0, np.log2(np.maximum(flows / 2.0, 1.0)))


def _between_s(p: CollectiveProblems, fabric: Fabric, v: Values, place: _Place, fixed_s: Floats) -> Floats:
    """Return times of groups that span machines."""
    machines, here = place.machines, place.here
    nic = nic_bytes_per_s(fabric, here)
    is_sum, is_exchange = is_kind(p, CollectiveKind.ALL_REDUCE), _is_exchange(p)
    doubled = np.where(is_sum, 2.0, 1.0)
    volume = np.maximum(wire_bytes(p), 1.0)
    linked = place.link_bytes_per_s * v["nic_link_efficiency"]
    link_s = volume / np.where(place.is_linked, linked, _host_bytes_per_s(p, fabric, v, place))
    ring_s = volume / (here * nic * v["nic_efficiency"])
    tree_s = p.message_bytes * 2.0 * (machines - 1.0) / machines / (here * nic * v["nic_tree_efficiency"])
    hop = MICRO * fabric.nic_latency_ratio * volume / (volume + HOP_BYTES)
    ring_hops = hop * doubled * ((machines - 1.0) * v["nic_step_us"] + (p.ranks - machines) * v["link_step_us"])
    tree_hops = hop * np.log2(np.maximum(machines, 2.0)) * v["tree_step_us"]
    sharpness = _below_one(v["nic_sharpness"])
    whole_s = _filled(_slower(link_s, ring_s), ring_hops, sharpness)
    summed_s = _filled(_slower(link_s, tree_s), tree_hops, sharpness)
    whole_s = np.where(is_sum, np.minimum(whole_s, np.where(place.sums_in_switch, summed_s, np.inf)), whole_s)
    pair_s = _filled(_paired_s(p, v, place, nic), ring_hops, sharpness)
    pair_s = np.where(is_kind(p, CollectiveKind.SEND_RECEIVE), _paired_s(p, v, place, nic), pair_s)
    jumps = np.where(is_kind(p, CollectiveKind.SEND_RECEIVE), 1.0, np.log2(np.maximum(machines, 2.0)))
    start = fixed_s + MICRO * v["nic_latency_us"] * fabric.nic_latency_ratio * jumps
    return _joined(start, np.where(is_exchange, pair_s, whole_s), v["nic_norm"])


def _paired_s(p: CollectiveProblems, v: Values, place: _Place, nic: Floats) -> Floats:
    """Return the time at full rate of what pairs of ranks exchange, by each rank's own NIC and links."""
    is_send = is_kind(p, CollectiveKind.SEND_RECEIVE)
    peers = np.where(is_send, SENDING_PEERS, np.maximum(place.machines - 1.0, 1.0))
    rate = nic * np.minimum(v["nic_exchange_efficiency"], v["pair_ratio"] * peers)
    away = np.where(is_send, 1.0, (p.ranks - place.here) / p.ranks)
    return np.asarray(p.message_bytes * away / rate)


def _below_one(value: Floats) -> Floats:
    return np.asarray(value / (1.0 + value))


def _slower(left: Floats, other: Floats) -> Floats:
    return np.asarray((left**LINKS_NORM + other**LINKS_NORM) ** (1.0 / LINKS_NORM))


def _filled(moving_s: Floats, hops_s: Floats, sharpness: Floats) -> Floats:
    """Return a time at full rate with what its hops add: all of it for large messages, less for small ones."""
    moving_s = np.maximum(moving_s, 1e-12)
    return np.asarray(moving_s * (1.0 + (hops_s / moving_s) ** sharpness))


def _joined(fixed_s: Floats, moving_s: Floats, norm: Floats) -> Floats:
    return np.asarray((fixed_s**norm + moving_s**norm) ** (1.0 / norm))


MODEL: Final = Model(
    name="collective",
    parameters=PARAMETERS,
    class_names=CLASSES,
    gpu_class=gpu_class,
    simulate=simulate,
    group_names=GROUPS,
    group=group,
)
