"""Reads a GPU's name as people type it: which words of an entry must be there, and which may be left out."""

import re
from collections import Counter
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

from ..records import dataclass
from .gpu import Catalog, Gpu

VENDORS: Final = frozenset({"nvidia", "amd", "intel"})
NEUTRAL_WORDS: Final = VENDORS | frozenset({"geforce", "tesla", "graphics", "gpu"})
_VARIANT_WORDS: Final = frozenset({
    *("super", "maxq", "mobile", "laptop", "pro", "titan", "ultra", "xtx", "gre", "max", "flex", "gaudi"),
    *("agx", "nano", "orin", "thor", "spark"),
})  # fmt: skip
"""Longer words that make another product. Words of one or two letters (Ti, X, D) do so, too."""
_BRAND_LETTERS: Final = frozenset({"rx", "ai"})
"""Short words that tell nothing apart."""
_FORMS: Final = re.compile(r"sxm\d?|pcie|nvl|dgxs|oam|hgx")
_MEMORY: Final = re.compile(r"(\d+)(gb|gib|g)")
_OF_EDITIONS: Final = frozenset({"maxq"})
"""Variants that cards named `pro` have as editions: left open, all are meant."""
_LONGEST_NAME: Final = 60
_GIB: Final = 2**30
_SUGGESTED: Final = 4
_LEAST_SIMILARITY: Final = 0.65
_SIMILARITY_SPAN: Final = 0.1
"""How much less like the name than the nearest a suggestion may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spelling:
    """Hold the words of an entry's name or alias."""

    needed: frozenset[str]
    """Without one of these it is another product: `4060` and `ti`."""
    optional: frozenset[str]


def can_mean(gpu: Gpu, name: str) -> bool:
    """Say whether a name is made of the GPU's words alone, in any order and however glued, and of all that it needs.

    May be left out: memory, form factor, architecture, vendor and brand.

    >>> can_mean(a100, "a100sxm4 80"), can_mean(a100, "a10 80gb")
    (True, False)
    """
    text = _joined(name)
    if not 0 < len(text) <= _LONGEST_NAME:
        return False
    optional = _facts(gpu).union(*(spelling.optional for spelling in _spellings(gpu)))
    return any(
        spelling.needed and _is_made_of(text, spelling.needed, optional | NEUTRAL_WORDS) for spelling in _spellings(gpu)
    )


def telling_words(gpu: Gpu) -> frozenset[str]:
    """Return one word for each spelling of a GPU without which `can_mean` is false: its longest that is needed."""
    return frozenset(max(spelling.needed, key=len) for spelling in _spellings(gpu) if spelling.needed)


def parts_of(name: str) -> set[str]:
    """Return all parts of a name as `can_mean` reads it, among which each word of it is; none of a name too long.

    >>> sorted(parts_of("a 1"))
    ['1', 'a', 'a1']
    """
    text = _joined(name)
    ends = range(1, len(text) + 1 if len(text) <= _LONGEST_NAME else 1)
    return {text[start:end] for end in ends for start in range(end)}


def agrees_with_vendor(gpu: Gpu, name: str) -> bool:
    """Say whether a name states no vendor, or this GPU's."""
    stated = VENDORS & set(words_of(name))
    return not stated or gpu.vendor.casefold() in stated or gpu.vendor.casefold() not in VENDORS


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case: letters and digits."""
    return re.findall(r"[a-z0-9]+", name.casefold().replace("max-q", "maxq").replace("pci-e", "pcie"))


def near_gpus(catalog: Catalog, name: str) -> list[Gpu]:
    """Return the GPUs that a name which means none is near to, nearest first.

    Those that share its model number (RTX 5060 Ti for `RTX 5060`); where none does, those spelled alike.

    >>> [gpu.name for gpu in near_gpus(catalog, "mi300")]
    ['Instinct MI300X']
    """
    typed = re.sub(r"(?<=\d)[oO]+|[oO]+(?=\d)", lambda match: "0" * len(match[0]), name)  # as in L4OS
    models = [model for model in map(_model_of, words_of(typed)) if model]
    related = [gpu for gpu in catalog.gpus if any(_is_related(model, gpu) for model in models)]
    likeness = {gpu.name: _likeness(gpu, typed) for gpu in related or catalog.gpus}
    least = 0.0 if related else max(_LEAST_SIMILARITY, max(likeness.values(), default=0.0) - _SIMILARITY_SPAN)
    near = [gpu for gpu in related or catalog.gpus if likeness[gpu.name] >= least]
    return sorted(near, key=lambda gpu: -likeness[gpu.name])[:_SUGGESTED]


def _model_of(word: str) -> str:
    """Return the part of a word that tells products apart; empty for a size or a form factor."""
    bare = re.sub(r"^(\d+x(?=[a-z]))?(nvidia|geforce|tesla|quadro|instinct|radeon|arc|rtx|gtx|rx)*", "", word)
    is_model = any(map(str.isdigit, bare)) and len(bare) > 1
    return bare if is_model and not _MEMORY.fullmatch(bare) and not _FORMS.fullmatch(bare) else ""


def _is_related(model: str, gpu: Gpu) -> bool:
    """Say whether a model number is the GPU's but for letters, or zeros left out, that follow it, on either side."""
    for spelling in _spellings(gpu):
        for word in spelling.needed:
            short, long = sorted((model, word), key=len)
            rest = long[len(short) :]
            is_model = any(map(str.isdigit, short)) and len(short) > 1
            if is_model and long.startswith(short) and not rest.lstrip("0" if short == model else "")[:1].isdigit():
                return True
    return False


def _likeness(gpu: Gpu, name: str) -> float:
    """Return how alike a name and the nearest spelling of a GPU are, 0 to 1."""
    text = _joined(name, dropped=NEUTRAL_WORDS)[:_LONGEST_NAME]
    spelled = (_joined(item, dropped=NEUTRAL_WORDS) for item in (gpu.name, *gpu.aliases))
    texts = {item for full in spelled for item in (full, re.sub(r"^(rtx|gtx|instinct|quadro)", "", full))}
    return max(_similarity(text, item) for item in texts)


def _similarity(one: str, other: str) -> float:
    """Return how alike two texts are: their characters in order, and in any, so that swapped digits are near."""
    shared = 2 * (Counter(one) & Counter(other)).total() / max(len(one) + len(other), 1)
    return (SequenceMatcher(None, one, other).ratio() + shared) / 2


@lru_cache(maxsize=4096)
def _spellings_of(names: tuple[str, ...], architecture: str) -> tuple[_Spelling, ...]:
    return tuple(_read_spelling(name, frozenset(words_of(architecture))) for name in names)


def _spellings(gpu: Gpu) -> tuple[_Spelling, ...]:
    return _spellings_of((gpu.name, *gpu.aliases), gpu.architecture)


def _read_spelling(name: str, architecture: frozenset[str]) -> _Spelling:
    """Divide the words of a name: what stands in brackets may always be left out."""
    aside = {word for part in re.findall(r"\(([^)]*)\)", name) for word in words_of(part)}
    words = set(words_of(re.sub(r"\([^)]*\)", " ", name))) - NEUTRAL_WORDS
    if "titan" in words:
        return _Spelling(needed=frozenset(words), optional=frozenset(aside))
    editions = _OF_EDITIONS if "pro" in words else frozenset()
    needed = {word for word in words - editions - architecture if _tells_apart(word)}
    brands = {"rtx", "gtx"} if words & {"rtx", "gtx"} else set()
    return _Spelling(needed=frozenset(needed), optional=frozenset((words - needed) | aside | brands))


def _tells_apart(word: str) -> bool:
    if (
        word in _BRAND_LETTERS
        or _MEMORY.fullmatch(word)
        or _FORMS.fullmatch(word)
        or word.startswith(("hbm", "gddr", "lpddr"))
    ):
        return False
    return any(map(str.isdigit, word)) or word in _VARIANT_WORDS or len(word) <= 2


def _facts(gpu: Gpu) -> frozenset[str]:
    """Return how people state a GPU's memory, form factor and architecture beside its name."""
    spelled = {word for name in (gpu.name, *gpu.aliases) for word in words_of(name)}
    sizes = {match[1] for match in map(_MEMORY.fullmatch, spelled) if match} | {f"{gpu.memory_bytes / _GIB:.0f}"}
    facts = {size + unit for size in sizes for unit in ("", "g", "gb", "gib")}
    facts |= {word for word in spelled if _FORMS.fullmatch(word)}
    facts |= {"sxm" for word in spelled if word.startswith("sxm")}
    return frozenset(facts | set(words_of(gpu.memory_type)) | set(words_of(gpu.architecture)))


def _joined(name: str, dropped: frozenset[str] = frozenset()) -> str:
    """Return the words of a name in one piece, a blank left only between numbers."""
    return re.sub(r"(?<!\d) | (?!\d)", "", " ".join(word for word in words_of(name) if word not in dropped))


def _is_made_of(text: str, needed: frozenset[str], optional: frozenset[str]) -> bool:
    """Say whether a text is a sequence of these words, with all needed ones; a number begins where none ends."""
    reached: dict[int, set[frozenset[str]]] = {0: {frozenset()}}
    for at in range(len(text)):
        for used in reached.pop(at, ()):
            if text[at] == " ":
                reached.setdefault(at + 1, set()).add(used)
            for word in needed | optional:
                if text.startswith(word, at) and not (word.isdigit() and at and text[at - 1].isdigit()):
                    reached.setdefault(at + len(word), set()).add(used | ({word} & needed))
    return needed in reached.get(len(text), ())
