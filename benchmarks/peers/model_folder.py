"""The Hugging Face folder that every route starts from: the one given, or ALBERT-base with random weights.

This project's command wants a tokenizer beside the weights, as a real checkpoint has; the peers need none. Where the
folder has none, a copy of links gets the one given, or a stand-in of the right size: a SentencePiece model trained on
this project's own sentences and filled up with pieces that no text contains.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from edge_albert.errors import CheckpointError, TokenizerError
from edge_albert.tokenization.tokenizer_config import SPIECE_FILES, VOCAB_FILES

_TORCH_SIDE = Path(__file__).with_name("torch_side.py")
_SPIECE = SPIECE_FILES[0]
_CONTROL = ("[CLS]", "[SEP]", "[MASK]")
_STAND_IN_PIECES = 1500


def prepare(model: Path | None, tokenizer: Path | None, work: Path) -> Path:
    """The folder to export from, with a tokenizer. model: a Hugging Face folder, None to make ALBERT-base in `work`.

    Raises CheckpointError for a folder without config.json, TokenizerError for a tokenizer that is not there.
    """
    if tokenizer is not None and not tokenizer.is_file():
        raise TokenizerError(f"{tokenizer}: no such file: --tokenizer names a spiece.model")
    source = _made_model(work) if model is None else model.resolve()
    if not (source / "config.json").is_file():
        raise CheckpointError(f"{source}: no config.json there: --model names a Hugging Face folder")
    if tokenizer is None and any((source / name).is_file() for name in SPIECE_FILES + VOCAB_FILES):
        return source
    folder = work / "model-with-tokenizer"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in source.iterdir():
        if file.is_file() and file.name not in SPIECE_FILES + VOCAB_FILES:
            (folder / file.name).symlink_to(file.resolve())
    if tokenizer is not None:
        shutil.copyfile(tokenizer, folder / _SPIECE)
    else:
        (folder / _SPIECE).write_bytes(stand_in_tokenizer(read_config(source)["vocab_size"]))
    return folder


def read_config(folder: Path) -> dict[str, int]:
    """config.json, with transformers' defaults for the two fields that are used here."""
    return {"vocab_size": 30000, "max_position_embeddings": 512, **json.loads((folder / "config.json").read_text())}


def _made_model(work: Path) -> Path:
    """ALBERT-base with random weights; made once per work folder."""
    folder, unfinished = work / "albert-base", work / "albert-base.unfinished"
    if not folder.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [sys.executable, str(_TORCH_SIDE), "model", str(unfinished)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr.strip() or "no message").splitlines()[-1]
            raise CheckpointError(f"{folder}: could not be made: {said}")
        os.rename(unfinished, folder)
    return folder


def stand_in_tokenizer(vocab_size: int) -> bytes:
    """A SentencePiece model with exactly `vocab_size` pieces and ALBERT's special tokens at ids 0 to 4."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    from calibration.agreement import default_texts

    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.lower() for text in default_texts()]), model_writer=trained,
        model_type="unigram", vocab_size=min(_STAND_IN_PIECES, vocab_size), hard_vocab_limit=False,
        character_coverage=1.0, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=list(_CONTROL),
        minloglevel=2, num_threads=1,
    )  # fmt: skip
    proto = sentencepiece_model_pb2.ModelProto.FromString(trained.getvalue())  # type: ignore[attr-defined]
    lowest = min(piece.score for piece in proto.pieces)
    for number in range(len(proto.pieces), vocab_size):
        proto.pieces.add(piece=f"▁unused{number}", score=lowest - 1.0)
    return proto.SerializeToString()
