"""Teachers: a pre-trained sentence encoder, fine-tuned with transformers on each task's rows.

AdamW 5e-5, batches of 32 of about equal length, linear warm-up over a tenth and decay, dropout as the model has it: the
usual recipe for a small BERT. The folder it writes is an ordinary transformers folder with the labels in its config.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from edge_albert.atomic import atomic_folder
from edge_albert.progress import Progress
from edge_albert.training.data.batches import epoch_batches
from edge_albert.training.data.examples import Columns, Example, any_label, label_names, number_fault, read_examples
from edge_albert.training.device import make_deterministic, pick_device
from edge_albert.training.distillation.teacher import find_teacher
from edge_albert.training.finetuning.objectives import classification
from edge_albert.training.metrics.glue import spearman
from edge_albert.training.optim import adamw, linear_schedule
from results.plan import TASKS, Plan, TaskPlan, add_record, read_records

RATE, BATCH, LONGEST, SEED = 5e-5, 32, 128, 1


def train_teachers(plan: Plan) -> None:
    """Fine-tune every teacher that is not there yet, and note its figures on the dev and test rows."""
    for name in plan.tasks:
        task = TASKS[name]
        folder = plan.teacher(task)
        if not folder.exists():
            fine_tune(
                plan.encoder,
                folder,
                read_examples(plan.file(name, "train"), Columns(), any_label, skip_bad=False).rows,
                task,
            )
        noted = [record for record in read_records(plan.results) if record["kind"] == "teacher"]
        if name not in [record["task"] for record in noted]:
            figures = {part: judge(folder, task, plan.file(name, part)) for part in plan.parts(name)}
            add_record(plan.results, {"task": name, "size": "", "kind": "teacher", "seed": SEED, "fp32": figures})
            print(f"{name}: teacher {figures}", flush=True)


def fine_tune(encoder: Path, output: Path, rows: list[Example], task: TaskPlan) -> None:
    """A sequence classifier on top of `encoder`, written to `output`."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    device = pick_device()
    make_deterministic(SEED, device)
    labels = label_names(rows)
    tokenizer = AutoTokenizer.from_pretrained(encoder, local_files_only=True)
    model = AutoModelForSequenceClassification.from_pretrained(
        encoder,
        id2label=dict(enumerate(labels)),
        label2id={name: i for i, name in enumerate(labels)},
        local_files_only=True,
    ).to(device)
    ids = tokenizer([row.text for row in rows], truncation=True, max_length=LONGEST)["input_ids"]
    gold = np.array([labels.index(row.label) for row in rows])
    lengths = np.array([len(row) for row in ids])
    steps = task.teacher_epochs * math.ceil(len(rows) / BATCH)
    optimizer = adamw(model, RATE, 0.01)
    schedule = linear_schedule(optimizer, steps, 0.1)
    model.train()
    with Progress(steps, f"teacher {task.name}") as bar:
        for epoch in range(1, task.teacher_epochs + 1):
            for batch in epoch_batches(lengths, BATCH, SEED, epoch):
                inputs = tokenizer.pad({"input_ids": [ids[row] for row in batch]}, return_tensors="pt").to(device)
                loss = F.cross_entropy(model(**inputs).logits, torch.from_numpy(gold[batch]).to(device))
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                bar.update(loss=loss.item())
    with atomic_folder(output, force=False) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def judge(folder: Path, task: TaskPlan, path: Path) -> float:
    """The task's metric of a teacher on a file's rows."""
    teacher = find_teacher(str(folder), task.kind)
    embeds = task.kind == "sentence-embedding"
    rows = read_examples(path, Columns(), number_fault if embeds else any_label, skip_bad=False, needs_pair=embeds).rows
    if embeds:
        sides = [[(text, None) for text in texts] for texts in ([r.text for r in rows], [r.pair or "" for r in rows])]
        first, second = (
            np.concatenate([teacher.answer(side[i : i + 64], "mean")[1] for i in range(0, len(side), 64)])
            for side in sides
        )
        return spearman(np.array([float(row.label) for row in rows]), (first * second).sum(axis=1))
    texts = [(row.text, row.pair) for row in rows]
    answers = [teacher.answer(texts[i : i + 64], "mean")[0] for i in range(0, len(texts), 64)]
    predicted = np.concatenate([answer.argmax(axis=1) for answer in answers if answer is not None])
    gold = np.array([teacher.labels.index(row.label) for row in rows])
    return classification(len(teacher.labels)).judge(gold, predicted)[task.metric]
