"""The NumPy reference equals transformers: it is what every exported file is judged by."""

from __future__ import annotations

import numpy as np
import pytest
from test_converters import feeds, kept, transformers_output
from tiny_models import tiny_config, tiny_tensors

from calibration.agreement import compare, default_texts, run_reference
from calibration.reference import ReferenceModel
from edge_albert.tasks import TASKS
from edge_albert.tokenizer import load_tokenizer


@pytest.mark.parametrize("task", TASKS)
def test_equals_transformers(task):
    config = tiny_config(task, num_hidden_layers=4, num_hidden_groups=2)
    inputs = feeds(config, batch=3, length=20)
    found = ReferenceModel(config, tiny_tensors(config, task), TASKS[task])(**inputs)
    expected = transformers_output(config, task, inputs)
    np.testing.assert_allclose(kept(found, task, inputs), kept(expected, task, inputs), atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_every_activation_equals_transformers(activation):
    config = tiny_config("text-classification", hidden_act=activation)
    inputs = feeds(config, batch=2, length=12)
    found = ReferenceModel(config, tiny_tensors(config, "text-classification"), TASKS["text-classification"])(**inputs)
    np.testing.assert_allclose(found, transformers_output(config, "text-classification", inputs), atol=1e-5)


def test_batches_change_nothing(tmp_path):
    from tiny_spiece import train_tiny_spiece

    task = "token-classification"
    config = tiny_config(task)
    model = ReferenceModel(config, tiny_tensors(config, task), TASKS[task])
    tokenizer = load_tokenizer(train_tiny_spiece(tmp_path).parent)
    encodings = [
        tokenizer.encode(text, max_length=60) for text in ("a", "the blue door", "two letters from london, again?")
    ]
    together = run_reference(model, encodings, config.pad_token_id, per_token=True)
    for encoding, rows in zip(encodings, together, strict=True):
        alone = run_reference(model, [encoding], config.pad_token_id, per_token=True)[0]
        assert rows.shape == (len(encoding.input_ids), 3)
        np.testing.assert_allclose(rows, alone, atol=1e-5)


# -- agreement --------------------------------------------------------------------------------------------------------


def test_agreement_of_known_rows():
    reference = [np.array([2.0, 0.0]), np.array([0.0, 1.0])]
    exported = [np.array([1.5, 0.0]), np.array([1.0, 0.0])]
    found = compare(reference, exported, TASKS["text-classification"])
    assert (found.texts, found.max_difference, found.same_label) == (2, 1.0, 0.5)
    assert found.mean_cosine == pytest.approx(0.5)
    assert found.min_cosine == pytest.approx(0.0)


def test_agreement_without_labels():
    rows = [np.array([0.6, 0.8])]
    assert compare(rows, rows, TASKS["sentence-embedding"]).same_label is None
    assert compare([np.array([1.0])], [np.array([1.1])], TASKS["text-regression"]).same_label is None


def test_agreement_of_spans_compares_start_and_end():
    reference = [np.array([[5.0, 0.0], [0.0, 5.0], [0.0, 0.0]])]
    exported = [np.array([[5.0, 0.0], [0.0, 0.0], [0.0, 5.0]])]
    assert compare(reference, exported, TASKS["question-answering"]).same_label == 0.5


def test_default_texts_are_many_and_differ():
    texts = default_texts()
    assert len(texts) >= 300
    assert len(set(texts)) == len(texts)
