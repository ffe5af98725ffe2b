"""Lines to compare tokenizers on: real ones from the shared data, and generated ones full of hard Unicode.

The generator uses nothing but `random.Random.random`, whose sequence Python promises to keep, and characters that have
been in Unicode for many versions, so the lines (and the recorded digests of their ids) are the same everywhere.
"""

from __future__ import annotations

import hashlib
import json
import random
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

WORDS = (
    "the", "a", "of", "movie", "london", "phone", "never", "testing", "unbelievable", "quickly", "7", "2026", "iPhone",
    "rock'n'roll", "e.g.", "U.S.",
)  # fmt: skip
QUOTES = ("``", "''", '"', "'", "`", "“", "”", "‘", "’", "«", "»", "''''", "```")
DIGITS = ("9,", "9,5", "92000,", "1,000,000", "10,", "3.14,", "1,2,3,", "a9,", "$5,", "²,", "٣,", "½,", "(7,", "7,)")
ACCENTS = ("café", "naïve", "Ångström", "İstanbul", "Straße", "cafe\u0301", "n\u0303", "ø", "Œuvre", "ĳ", "ǆ", "ẞ", "ſ")
LIGATURES = ("ﬁ", "ﬄ", "½", "①", "Ⅷ", "ｆｕｌｌ", "㎏", "™", "℃", "ª", "𝓗", "㍿", "…", "‥", "ŉ")
EMOJI = ("😀", "❤\ufe0f", "👩\u200d👩\u200d👧", "👍🏽", "🇩🇪", "1\ufe0f\u20e3", "☕", "©")
SCRIPTS = (
    "中文测试", "東京タワー", "ﾊﾟ", "한국어", "Привет", "Ёлка", "ΣΊΣΥΦΟΣ", "שָׁלוֹם", "مَرْحَبًا", "हिन्दी", "ภาษาไทย", "தமிழ்",
)  # fmt: skip
INVISIBLE = (
    "\u200b", "\u200c", "\u200d", "\u200e", "\u2060", "\ufeff", "\u00ad", "\u202e", "\u180e", "\ufffd", "\ue000",
)  # fmt: skip
CONTROLS = tuple(chr(code) for code in (*range(0x00, 0x20), *range(0x7F, 0xA0)))
SPACES = (" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u3000", "\u2028", "\u1680", "\u205f", " \u200b ")
SYMBOLS = (
    "▁",
    "▁▁a",
    "#",
    "##s",
    "[",
    "]",
    "<",
    ">",
    "(",
    ")",
    "-",
    "–",
    "—",
    "£",
    "€",
    "$",
    "%",
    "&",
    "http://x.io/?q=1",
)

POOLS = (WORDS, WORDS, QUOTES, DIGITS, ACCENTS, LIGATURES, EMOJI, SCRIPTS, INVISIBLE, CONTROLS, SPACES, SYMBOLS)
RANGES = (
    (0x21, 0x7F), (0xA1, 0x250), (0x300, 0x370), (0x370, 0x500), (0x1E00, 0x2000), (0x3041, 0x30FF), (0x4E00, 0x9FA6),
    (0xAC00, 0xD7A4), (0x1100, 0x1200), (0xFF01, 0xFFDD), (0x2070, 0x2190),
)  # fmt: skip


def generated_lines(count: int, seed: int = 0) -> list[str]:
    """`count` lines of 1 to 12 fragments from the pools and ranges, glued with or without spaces."""
    rng = random.Random(seed)

    def below(n: int) -> int:
        return int(rng.random() * n)

    def fragment() -> str:
        kind = below(len(POOLS) + 3)
        if kind < len(POOLS):
            return POOLS[kind][below(len(POOLS[kind]))]
        if kind == len(POOLS):
            return unicodedata.normalize("NFD", chr(0xAC00 + below(11172)))
        low, high = RANGES[below(len(RANGES))]
        characters = [chr(low + below(high - low)) for _ in range(1 + below(4))]
        return "".join(c for c in characters if unicodedata.ucd_3_2_0.category(c) != "Cn")

    return ["".join(fragment() + " " * below(2) for _ in range(1 + below(12))) for _ in range(count)]


def sst2(data: Path) -> Iterator[str]:
    for name in ("train.tsv", "dev.tsv"):
        for line in (data / "glue" / "SST-2" / name).read_text(encoding="utf-8").splitlines()[1:]:
            yield line.split("\t")[0]


def snips(data: Path) -> Iterator[str]:
    for part in ("train", "dev", "test"):
        yield from (data / "intents" / "snips" / part / "seq.in").read_text(encoding="utf-8").splitlines()


def sms(data: Path) -> Iterator[str]:
    for line in (data / "sms_spam" / "SMSSpamCollection").read_text(encoding="utf-8").split("\n"):
        if line:
            yield line.split("\t", 1)[1]


def squad(data: Path) -> Iterator[str]:
    for name in ("squad2_dev_5articles.json", "hf_dev-v2.0-small.json"):
        for article in json.loads((data / "squad" / name).read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                yield paragraph["context"]
                yield from (qa["question"] for qa in paragraph["qas"])


CORPORA: dict[str, Callable[[Path], Iterator[str]]] = {"sst2": sst2, "snips": snips, "sms": sms, "squad": squad}


def digest(ids: Iterable[list[int]]) -> str:
    """SHA-256 over the ids of many lines, each line as "1 2 3\\n"."""
    sha = hashlib.sha256()
    for line in ids:
        sha.update((" ".join(map(str, line)) + "\n").encode("ascii"))
    return sha.hexdigest()
