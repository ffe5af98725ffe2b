"""Hugging Face's side: `Trainer`, set as a competent user would set it.

Fine-tuning: tokenised beforehand, DataCollatorWithPadding (each batch padded to its longest), AdamW, fused attention
(`sdpa`), no evaluation, saving or reporting. `finetune_grouped` also groups rows by length, which is off by default.
Pre-training: the same segments, masked by DataCollatorForLanguageModeling as they come, sentence order as the second
objective (AlbertForPreTraining), gradients accumulated over as many micro-batches as on our side.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
import transformers

from speed.job import Clock, Job, figures

Rows = list[dict[str, Any]]


def finetune(job: Job) -> dict[str, float | str | None]:
    return _finetune(job)


def finetune_grouped(job: Job) -> dict[str, float | str | None]:
    return _finetune(job, train_sampling_strategy="group_by_length")


def _finetune(job: Job, **more: Any) -> dict[str, float | str | None]:
    texts, labels = job.labelled()
    rows = [
        {"input_ids": ids.tolist(), "token_type_ids": types.tolist(), "labels": int(label)}
        for ids, types, label in zip(texts.input_ids, texts.token_type_ids, texts.labels, strict=True)
    ]
    config = transformers.AlbertConfig.from_dict({**job.config.to_dict(), "id2label": dict.fromkeys(range(labels), "")})
    model = transformers.AlbertForSequenceClassification(config)
    collate = transformers.DataCollatorWithPadding(_tokenizer(job))
    return _train(job, model, rows, collate, per_device_train_batch_size=job.batch_size, **more)


def pretrain(job: Job) -> dict[str, float | str | None]:
    maker, spans = job.segments()
    rows = []
    for number in range((job.steps + 1) * job.batch_size):
        example = maker.make(spans, 0, number)
        example.input_ids[example.positions] = example.labels  # unmasked: their collator masks
        rows.append(
            {
                "input_ids": example.input_ids.tolist(),
                "token_type_ids": example.token_type_ids.tolist(),
                "sentence_order_label": example.order,
            }
        )
    model = transformers.AlbertForPreTraining(transformers.AlbertConfig.from_dict(job.config.to_dict()))
    collate = transformers.DataCollatorForLanguageModeling(_tokenizer(job), mlm_probability=0.15)
    accumulated = job.batch_size // job.micro_batch
    return _train(
        job, model, rows, collate, per_device_train_batch_size=job.micro_batch, gradient_accumulation_steps=accumulated
    )


def _tokenizer(job: Job) -> Any:
    return transformers.AlbertTokenizer.from_pretrained(job.tokenizer, local_files_only=True)


def _train(job: Job, model: Any, rows: Rows, collate: Callable[[Rows], Any], **more: Any) -> dict[str, Any]:
    """One epoch over the rows; the first step is not timed."""
    seen: list[int] = []  # tokens of every micro-batch

    def counted(batch: Rows) -> Any:
        out = collate(batch)
        seen.append(int(out["attention_mask"].sum()))
        return out

    clocks: list[Clock] = []

    class AfterFirst(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                clocks.append(Clock())

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, num_train_epochs=1, learning_rate=3e-5, warmup_steps=2, weight_decay=0.01, report_to="none",
            save_strategy="no", logging_strategy="steps", logging_steps=10, disable_tqdm=True, seed=1,
            remove_unused_columns=False, bf16=torch.cuda.is_available(), **more,
        )  # fmt: skip
        callbacks = [AfterFirst()]
        transformers.Trainer(model, arguments, counted, rows, callbacks=callbacks).train()
    cpu, wall = clocks[0].read()
    first = more.get("gradient_accumulation_steps", 1)
    return figures(job, sum(seen[first:]), cpu, wall)
