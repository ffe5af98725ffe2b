"""A pre-training run as a folder: what `python -m edge_albert.pretrain` sets up, and what it goes on with.

run.json        the configuration, the recipe, where the shards are; all that `--resume` needs
tokenizer/      a copy of the tokenizer's files
shards/         the tokenised corpus, unless it was put elsewhere to be shared between runs
log.jsonl       one record per logged step and per evaluation
checkpoints/    the last few; see resume.py
model/          the finished model, a Hugging Face folder
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edge_albert.atomic import write_file_atomic
from edge_albert.checkpoint import Checkpoint, expected_shapes, read_checkpoint
from edge_albert.checkpoint_formats.hub import TOKENIZER_FILES
from edge_albert.config import AlbertConfig
from edge_albert.errors import ConfigError, EdgeAlbertError
from edge_albert.model import AlbertForPreTraining, build_model
from edge_albert.tokenizer import Tokenizer, load_tokenizer
from edge_albert.training.device import make_deterministic
from edge_albert.training.distributed import Ranks
from edge_albert.training.pretraining.corpus import Corpus, Source
from edge_albert.training.pretraining.examples import MIN_TOKENS, ExampleMaker, special_tokens
from edge_albert.training.pretraining.loop import Pretrainer
from edge_albert.training.pretraining.recipe import PretrainRecipe
from edge_albert.training.pretraining.shards import TokenStore, usable_cores, write_shards
from edge_albert.training.resume import checkpoints
from edge_albert.training.weights import load_arrays

FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """What a run is. shards: the folder of tokens. init: a checkpoint whose weights to begin with."""

    config: AlbertConfig
    recipe: PretrainRecipe
    shards: Path
    init: str | None = None

    def write(self, folder: Path) -> None:
        """As `folder`/run.json; the shards' path is relative to the folder, so that both may be moved together."""
        content = {
            "format": FORMAT,
            "config": self.config.to_dict(),
            "recipe": asdict(self.recipe),
            "shards": os.path.relpath(self.shards, folder),
            "init": self.init,
        }
        write_file_atomic(folder / "run.json", json.dumps(content, indent=2) + "\n")

    @staticmethod
    def read(folder: Path) -> Plan:
        """Raises EdgeAlbertError when `folder` holds no run."""
        path = folder / "run.json"
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise EdgeAlbertError(f"{path}: format {content['format']} is not {FORMAT}, the one this version reads")
            config = AlbertConfig.from_dict(content["config"], source=str(path))
            shards = Path(os.path.normpath(folder / content["shards"]))
            return Plan(config, PretrainRecipe(**content["recipe"]), shards, content["init"])
        except (OSError, ValueError, KeyError, TypeError):
            raise EdgeAlbertError(f"{path}: missing or damaged: name the --output folder of an earlier run") from None


def fit_config(config: AlbertConfig, tokenizer: Tokenizer, recipe: PretrainRecipe) -> AlbertConfig:
    """The shape with the vocabulary's size and special ids. Raises ConfigError when `max_length` cannot be used."""
    shortest = special_tokens(recipe.objective) + MIN_TOKENS
    if not shortest <= recipe.max_length <= config.max_position_embeddings:
        raise ConfigError(
            f"--max-length {recipe.max_length} must be {shortest} … max_position_embeddings "
            f"{config.max_position_embeddings}"
        )
    return replace(config, **tokenizer_fields(tokenizer))


def tokenizer_fields(tokenizer: Tokenizer) -> dict[str, Any]:
    """The fields of a config that the tokenizer decides."""
    return {
        "vocab_size": tokenizer.vocab_size,
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.cls_id,
        "eos_token_id": tokenizer.sep_id,
    }


def set_up(
    folder: Path, plan: Plan, tokenizer: Tokenizer, sources: Sequence[Source], *, text_field: str, processes: int
) -> None:
    """Make the run's folder, and the shards if they are not there yet. Only the first process may.

    Raises EdgeAlbertError when the folder holds a run already, DataError for the corpus, or for shards that were made
    of another corpus or with another vocabulary.
    """
    if (folder / "run.json").exists():
        raise EdgeAlbertError(f"{folder}: holds a run already: go on with --resume {folder}, or name another --output")
    corpus = Corpus(sources, text_field=text_field)
    if not plan.shards.exists():
        if not sources:
            raise EdgeAlbertError(f"{plan.shards}: no shards there, and no corpus to make them of: name one")
        write_shards(corpus, tokenizer.path.parent, plan.shards, processes=processes)
    store = TokenStore(plan.shards)
    store.check_vocabulary(tokenizer)
    if sources:
        store.check_corpus(corpus)
    for name in TOKENIZER_FILES:
        source = tokenizer.path.parent / name
        if source.is_file():
            write_file_atomic(folder / "tokenizer" / name, source.read_bytes())
    plan.write(folder)


def wait_for_run(folder: Path) -> None:
    """Until the first process has set the run up; it may tokenise for hours, longer than a process group waits."""
    while not (folder / "run.json").exists():
        time.sleep(0.2)


def pretrain(folder: Path, ranks: Ranks, *, workers: int | None = None) -> None:
    """Run what the folder's run.json says, from the newest checkpoint on if there is one. Every process calls it.

    workers: processes beside this one that make batches; by default up to 8 on a GPU, which would wait for them, and
    none on a CPU, which they would take from the training. The result does not depend on it.
    """
    plan = Plan.read(folder)
    tokenizer = load_tokenizer(folder / "tokenizer")
    store = TokenStore(plan.shards)
    store.check_vocabulary(tokenizer)
    make_deterministic(plan.recipe.seed, ranks.device)
    model = build_model(plan.config, "pretraining")
    assert isinstance(model, AlbertForPreTraining)
    if plan.init is not None and not checkpoints(folder / "checkpoints"):
        load_arrays(model, read_checkpoint(plan.init).tensors)
    maker = ExampleMaker.of(store, tokenizer, plan.recipe.objective, plan.recipe.seed, plan.recipe.mask_share)
    if workers is None:
        workers = min(8, usable_cores() - 1) if ranks.device.type == "cuda" else 0
    Pretrainer(model.to(ranks.device), plan.recipe, maker, tokenizer, ranks, folder, workers=workers).run()


def check_init(checkpoint: Checkpoint, config: AlbertConfig, tokenizer: Tokenizer) -> None:
    """Raises ConfigError when a checkpoint does not fit the run that is to begin with its weights.

    Heads that it lacks are begun anew; a tensor of another shape would be left out in silence.
    """
    if checkpoint.config.vocab_size != tokenizer.vocab_size:
        raise ConfigError(
            f"{checkpoint.source}: its vocab_size is {checkpoint.config.vocab_size}, and {tokenizer.path} has "
            f"{tokenizer.vocab_size} pieces: use the checkpoint's own tokenizer"
        )
    for name, shape in expected_shapes(config, None).items():
        tensor = checkpoint.tensors.get(name)
        if tensor is None and name.startswith(("albert.embeddings.", "albert.encoder.")):
            raise ConfigError(
                f"{checkpoint.source}: has no {name}, which the run's shape needs: with --init, --set may only change "
                "what has no weights"
            )
        if tensor is not None and tensor.shape != shape:
            raise ConfigError(
                f"{checkpoint.source}: {name} is {tensor.shape}, the run's shape needs {shape}: with --init, --set may "
                "only change what has no weights"
            )
