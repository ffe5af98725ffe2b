"""Students: what each begins with, and the command that trains it. Whatever is there already is left alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_albert.checkpoint import read_checkpoint, write_checkpoint
from edge_albert.model import build_model
from edge_albert.tokenizer import load_tokenizer
from edge_albert.training.data.examples import Columns, any_label, read_examples
from edge_albert.training.device import make_deterministic, pick_device
from edge_albert.training.distillation.lessons import make_lesson, read_unlabelled
from edge_albert.training.distillation.shrink import shrink_embedding
from edge_albert.training.distillation.teacher import find_teacher
from edge_albert.training.distillation.teacher_cache import Wanted, cached_answers
from edge_albert.training.weights import arrays_of
from results.near import choose, encoder_answers
from results.plan import EMBEDDING_SIZES, TASKS, Plan, Student, run

LENGTH = 128
_COUNTED = 50_000  # sentences whose words are counted, to shrink the embedding for
FINE_TUNING = ("--batch-size", 32, "--warmup", 0.1, "--patience", 1000, "--max-length", LENGTH)
RATES = {"scratch": 5e-4, "pretrained": 3e-4, "distilled": 1e-4}  # peak learning rate of fine-tuning
DROPOUTS = {"scratch": 0.1, "pretrained": 0.1, "distilled": 0.0}
EMBEDDING = (  # teaching the encoder's vectors
    "--batch-size", 32, "--warmup", 0.05, "--patience", 1000, "--max-length", 64,
    "--sentence-vector", "both", "--evaluate-every", 1000,
)  # fmt: skip
CORPUS = ("--epochs", 2, "--lr", 7e-4)
NEAR = {"mini": ("--epochs", 1, "--lr", 3e-4), "tiny": ("--epochs", 1, "--lr", 5e-4)}
DISTILLING = (
    "--soft", 1, "--hard", 0.5, "--sentence", 1, "--sentence-vector", "cls", "--temperature", 4, "--batch-size", 64,
    "--lr", 5e-4, "--max-length", LENGTH, "--patience", 1000,
)  # fmt: skip


def answer(plan: Plan) -> None:
    """Let every teacher answer everything it will be asked, into the cache; choose the tasks' unlabelled texts."""
    texts, vectors = encoder_answers(plan, find_teacher(str(plan.encoder), "sentence-embedding"))
    for task in (TASKS[name] for name in plan.tasks):
        if task.kind == "sentence-embedding":
            continue
        choose(plan, task, texts, vectors)
        teacher = find_teacher(str(plan.teacher(task)), task.kind)
        labelled = read_examples(plan.file(task.name, "train"), Columns(), any_label, skip_bad=False).rows
        lesson = make_lesson(
            labelled, np.zeros(len(labelled), dtype=np.int64), read_unlabelled([plan.task_unlabelled(task)])
        )
        cached_answers(plan.cache, teacher, lesson.texts, Wanted(True, "cls"))
        print(f"{task.name}: {len(lesson.rows)} answers", flush=True)


def make_bases(plan: Plan) -> None:
    """What students begin with: random weights, the pre-trained ones, and those taught the encoder's vectors."""
    teaches = "distilled" in plan.kinds
    for size in ("mini", "tiny"):  # the taught tiny one comes of the taught mini one
        if size not in plan.sizes and not (size == "mini" and teaches):
            continue
        if not plan.base(size, "pretrained").exists():
            _pretrained(plan, size)
        if not plan.base(size, "scratch").exists():
            _scratch(plan, size)
        if teaches and not plan.base(size, "distilled").exists():
            _teach(plan, size)


def _teach(plan: Plan, size: str) -> None:
    """Teach the encoder's vectors, of the corpus and then of the tasks' rows. The tiny one is cut out of the mini one,
    and goes over the tasks' rows again."""
    shrunk, begun = EMBEDDING_SIZES[size], plan.base("mini", "distilled")
    smaller: list[object] = []
    if shrunk is None:
        begun = plan.base(size, "corpus")
        if not begun.exists():
            texts = [plan.unlabelled, plan.own_sentences]
            _teach_vectors(plan, plan.base(size, "pretrained"), [], texts, CORPUS, begun)
    elif shrunk < read_checkpoint(begun).config.embedding_size:
        smaller = ["--embedding-size", shrunk]
    _teach_vectors(plan, begun, smaller, [plan.near], NEAR[size], plan.base(size, "distilled"))


def _teach_vectors(
    plan: Plan, begun: Path, smaller: list[object], texts: list[Path], pace: tuple[object, ...], output: Path
) -> None:
    run(
        "distill", "--task", "sentence-embedding", "--teacher", plan.encoder, "--student", begun, *smaller,
        "--unlabelled", *texts, "--dev", plan.file("stsb", "dev"), "--teacher-cache", plan.cache, *EMBEDDING,
        *pace, "--checkpoints", plan.work / "checkpoints" / f"base-{output.name}", "--output", output,
    )  # fmt: skip


def _pretrained(plan: Plan, size: str) -> None:
    checkpoint = read_checkpoint(plan.pretrained)
    tensors, config = checkpoint.tensors, checkpoint.config
    shrunk = EMBEDDING_SIZES[size]
    if shrunk is not None and shrunk < config.embedding_size:
        tokenizer = load_tokenizer(checkpoint.folder)
        lines = plan.unlabelled.read_text(encoding="utf-8").splitlines()[:_COUNTED]
        ids = np.concatenate([tokenizer.ids(line) for line in lines])
        tensors, config = shrink_embedding(tensors, config, shrunk, np.bincount(ids, minlength=config.vocab_size) + 1)
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith("albert.")}
    write_checkpoint(plan.base(size, "pretrained"), config, kept, tokenizer_folder=checkpoint.folder)


def _scratch(plan: Plan, size: str) -> None:
    """Random weights of the pre-trained one's shape."""
    like = read_checkpoint(plan.base(size, "pretrained"))
    make_deterministic(1, pick_device())
    model = build_model(replace(like.config, id2label={0: "LABEL_0"}))
    write_checkpoint(plan.base(size, "scratch"), like.config, arrays_of(model), tokenizer_folder=like.folder)


def train(plan: Plan) -> None:
    """Train every student of the plan that is not there yet."""
    for student in plan.students():
        if not plan.student(student).exists():
            _train(plan, student)


def _train(plan: Plan, student: Student) -> None:
    task = student.task
    files: list[object] = ["--train", plan.file(task.name, "train")]
    for part in plan.parts(task.name):
        files += [f"--{part}", plan.file(task.name, part)]
    common = [
        "--task", task.kind, *files, "--metric", task.metric, "--seed", student.seed, "--output", plan.student(student),
    ]  # fmt: skip
    base = plan.base(student.size, student.kind)
    if student.kind == "distilled" and task.distilled:
        looks = ("--evaluate-every", task.look) if task.look else ()
        run(
            "distill", *common, "--teacher", plan.teacher(task), "--student", base, "--epochs", task.distilled,
            "--dropout", task.dropout, *looks, "--unlabelled", plan.task_unlabelled(task),
            "--teacher-cache", plan.cache, *DISTILLING, "--checkpoints", plan.work / "checkpoints" / student.name,
        )  # fmt: skip
        return
    run(
        "finetune", *common, "--model", base, "--epochs", task.epochs, "--lr", RATES[student.kind],
        "--dropout", DROPOUTS[student.kind], *FINE_TUNING,
    )  # fmt: skip
