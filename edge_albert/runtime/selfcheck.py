"""Does this device answer what the exporting machine answered? The bundle's golden examples, run here.

Token ids must be equal: another sentencepiece version may split a text differently. Outputs may differ by what
golden.json allows: int8 activations round differently on other processors, and a processor without the right
instructions may even saturate, which is what this finds. A model with early exit runs every iteration here: an input
near the threshold may leave at another one elsewhere, and be as right.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from edge_albert.early_exit import NEVER
from edge_albert.errors import BundleError
from edge_albert.runtime.session import Session, make_feeds


@dataclass(frozen=True)
class SelfCheck:
    """texts: how many were run. difference: the largest of any output; allowed: what golden.json allows.

    other_ids: texts whose token ids came out differently. digest: sha256 of all ids and outputs; two devices with the
    same one answer alike to the last bit.
    """

    texts: int
    difference: float
    allowed: float
    other_ids: tuple[str, ...]
    digest: str

    @property
    def passed(self) -> bool:
        return not self.other_ids and self.difference <= self.allowed


def self_check(session: Session) -> SelfCheck:
    """Run the golden examples of an open bundle. Raises BundleError when golden.json has none for this engine."""
    golden = session.bundle.golden()
    try:
        examples, outputs = golden["examples"], golden["outputs"][session.format]
        allowed = float(golden["tolerance"][session.format])
    except (KeyError, TypeError, ValueError):
        raise BundleError(f"{session.bundle.folder}: golden.json has no examples for {session.format}") from None
    config = session.bundle.config
    exits = session.bundle.exits
    full = {} if exits is None else exits.feeds(NEVER)
    largest, other_ids, digest = 0.0, [], hashlib.sha256()
    for example, expected in zip(examples, outputs, strict=True):
        encoding = session.tokenizer.encode(example["text"], example["pair"], max_length=config.max_position_embeddings)
        digest.update(np.asarray(encoding.input_ids, "<i4").tobytes())
        if encoding.input_ids != example["input_ids"]:
            other_ids.append(example["text"])
            continue
        feeds = make_feeds([encoding], config.pad_token_id)
        found = session.engine.run({**feeds, **full})[session.bundle.task.output][0]
        digest.update(np.ascontiguousarray(found, "<f4").tobytes())
        largest = max(largest, float(np.abs(found - np.asarray(expected)).max()))
    return SelfCheck(len(examples), largest, allowed, tuple(other_ids), digest.hexdigest())
