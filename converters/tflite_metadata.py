"""TFLite metadata: what a model's inputs and outputs mean, for tools that have the .tflite file and nothing else.

The metadata is a flatbuffer of its own in a buffer called TFLITE_METADATA. Its names are those that the TensorFlow
Lite Task Library's BertNLClassifier looks for: inputs `ids`, `segment_ids` and `mask` (the last releases go by
position, in this order, and resize tensors 0, 1 and 2; older ones by name), output `probability`, a tokenizer in the
first input process unit. The files it names are the bundle's tokenizer file (spiece.model or vocab.txt) and
labels.txt, the labels one a line. The Task Library wants them inside the model file, which may have a ZIP archive
after its end: Python's zipfile in mode "a" puts them there.
Source: metadata_schema.fbs (schema 1.1.0), bert_nl_classifier.cc and bert_preprocessor.cc in the tflite-support
repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converters.flatbuffer import write_flatbuffer
from edge_albert.flatbuffer import Schema
from edge_albert.tasks import Task

BUFFER_NAME = "TFLITE_METADATA"
LABELS_FILE = "labels.txt"

# input of the graph ► (its name in the metadata, its meaning), in the order they have in the file
INPUTS = {
    "input_ids": ("ids", "Tokenized ids of the input text, [CLS] first and [SEP] last."),
    "token_type_ids": ("segment_ids", "0 for the first sequence, 1 for the second sequence if exists."),
    "attention_mask": ("mask", "Mask with 1 for real tokens and 0 for padding tokens."),
}

_PARSER_VERSION = "1.1.0"
_AXIS_LABELS, _VOCABULARY = 2, 5  # AssociatedFileType

SCHEMA = Schema(
    """
    ModelMetadata { name:string description:string version:string subgraph_metadata:[SubGraphMetadata] author:string
                    license:string associated_files:[AssociatedFile] min_parser_version:string }
    SubGraphMetadata { name:string description:string input_tensor_metadata:[TensorMetadata]
                       output_tensor_metadata:[TensorMetadata] associated_files:[AssociatedFile]
                       input_process_units:[ProcessUnit] output_process_units:[ProcessUnit] }
    TensorMetadata { name:string description:string dimension_names:[string] content:Content
                     process_units:[ProcessUnit] stats:- associated_files:[AssociatedFile] }
    Content { content_properties:ContentProperties range:- }
    FeatureProperties { }
    ProcessUnit { options:ProcessUnitOptions }
    BertTokenizerOptions { vocab_file:[AssociatedFile] }
    SentencePieceTokenizerOptions { sentencePiece_model:[AssociatedFile] vocab_file:[AssociatedFile] }
    AssociatedFile { name:string description:string type:int8 locale:string }
    """,
    root="ModelMetadata",
    identifier=b"M001",
    unions={
        "ContentProperties": {"FeatureProperties": 1},
        "ProcessUnitOptions": {"BertTokenizerOptions": 4, "SentencePieceTokenizerOptions": 5},
    },
)

_MEANINGS = {
    "text-classification": "Logits, one per label; a softmax makes them probabilities.",
    "text-regression": "The predicted value.",
    "token-classification": "Logits, one row per token and one column per label.",
    "question-answering": "Logits of the answer's start (column 0) and end (column 1), one row per token.",
    "multiple-choice": "The score of this choice; run the model once per choice.",
    "sentence-embedding": "Mean of the tokens' hidden states, scaled to unit length.",
}


def model_metadata(task: Task, *, description: str, tokenizer_file: str) -> bytes:
    """The metadata of a model for `task` whose tokenizer is `tokenizer_file` (*.txt: WordPiece, else SentencePiece)."""
    graph = {
        "input_tensor_metadata": [_tensor(name, meaning) for name, meaning in INPUTS.values()],
        "output_tensor_metadata": [_output(task)],
        "input_process_units": [{"options": _tokenizer(tokenizer_file)}],
    }
    content = {
        "name": f"ALBERT {task.name}",
        "description": description,
        "subgraph_metadata": [graph],
        "min_parser_version": _PARSER_VERSION,
    }
    return write_flatbuffer(content, SCHEMA)


def _output(task: Task) -> dict[str, Any]:
    table = _tensor("probability" if task.name == "text-classification" else task.output, _MEANINGS[task.name])
    if task.name == "text-classification":
        labels = {"name": LABELS_FILE, "description": "Names of the labels, one a line.", "type": _AXIS_LABELS}
        table["associated_files"] = [labels]
    return table


def _tensor(name: str, meaning: str) -> dict[str, Any]:
    return {"name": name, "description": meaning, "content": {"content_properties": ("FeatureProperties", {})}}


def _tokenizer(file: str) -> tuple[str, Mapping[str, Any]]:
    if file.endswith(".txt"):
        return "BertTokenizerOptions", {"vocab_file": [{"name": file, "type": _VOCABULARY}]}
    return "SentencePieceTokenizerOptions", {"sentencePiece_model": [{"name": file}]}
