"""Variables of TensorFlow ALBERTs ► tensors under Hugging Face's names.

Two families of graphs wrote them. Google's (google-research/albert) has
`bert/encoder/transformer/group_0/inner_group_0/…`; TF-Hub modules put `module/` in front. Brightmart's Chinese ones
(albert_zh) have `bert/encoder/layer_shared/…`. In both a dense layer's kernel is (inputs, outputs) and is transposed;
the `output_weights` of heads are (outputs, inputs) already. Optimiser state is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from edge_albert.errors import CheckpointError

_OPTIMIZER = re.compile(r"(?:^|/)(?:global_step|adam_[mv]|(?:AdamWeightDecay|LAMB)Optimizer(?:_\d+)?|beta[12]_power)$")
_GROUP_LAYER = re.compile(r"bert/encoder/transformer/group_(\d+)/inner_group_(\d+)/(.+)")
_SHARED_LAYER = re.compile(r"bert/encoder/layer_shared/(.+)")
_BERT_LAYER = re.compile(r"bert/encoder/layer_\d+/")
_XLNET_HEAD = re.compile(r"(?:start_logits|end_logits|answer_class)/")
_TF2_OBJECT, _TF2_GRAPH = "/.ATTRIBUTES/", "_CHECKPOINTABLE_OBJECT_GRAPH"

_SCOPES = {
    "bert/embeddings/LayerNorm": "albert.embeddings.LayerNorm",
    "bert/encoder/embedding_hidden_mapping_in": "albert.encoder.embedding_hidden_mapping_in",
    "bert/pooler/dense": "albert.pooler",
    "cls/predictions/transform/dense": "predictions.dense",
    "cls/predictions/transform/LayerNorm": "predictions.LayerNorm",
}
_LAYER_SCOPES = {
    "attention_1/self/query": "attention.query",
    "attention_1/self/key": "attention.key",
    "attention_1/self/value": "attention.value",
    "attention_1/output/dense": "attention.dense",
    "LayerNorm": "attention.LayerNorm",
    "ffn_1/intermediate/dense": "ffn",
    "ffn_1/intermediate/output/dense": "ffn_output",
    "LayerNorm_1": "full_layer_layer_norm",
}
_SHARED_LAYER_SCOPES = {
    "attention/self/query": "attention.query",
    "attention/self/key": "attention.key",
    "attention/self/value": "attention.value",
    "attention/output/dense": "attention.dense",
    "attention/output/LayerNorm": "attention.LayerNorm",
    "intermediate/dense": "ffn",
    "output/dense": "ffn_output",
    "output/LayerNorm": "full_layer_layer_norm",
}
_LEAVES = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
_WHOLE = {
    "bert/embeddings/word_embeddings": "albert.embeddings.word_embeddings.weight",
    "bert/embeddings/position_embeddings": "albert.embeddings.position_embeddings.weight",
    "bert/embeddings/token_type_embeddings": "albert.embeddings.token_type_embeddings.weight",
    "cls/predictions/output_bias": "predictions.bias",
    "cls/seq_relationship/output_weights": "sop_classifier.classifier.weight",
    "cls/seq_relationship/output_bias": "sop_classifier.classifier.bias",
    "cls/squad/output_weights": "qa_outputs.weight",  # SQuAD 1.1's head: start and end of every token
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",  # run_classifier.py and run_race.py
    "output_bias": "classifier.bias",
}


def is_optimizer_state(variable: str) -> bool:
    """Whether a variable belongs to the training and not to the model: Adam's and LAMB's slots, the step count."""
    return _OPTIMIZER.search(variable) is not None


def hugging_face_names(variables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same tensors under Hugging Face's names, kernels transposed to (outputs, inputs).

    A variable that no ALBERT has keeps its name, for check_tensors to list.
    """
    tensors = {}
    for variable, array in variables.items():
        name = _hugging_face_name(variable.removeprefix("module/"))
        tensors[name] = np.ascontiguousarray(array.T) if variable.endswith("/kernel") else array
    return tensors


def refuse_other_models(variables: Iterable[str], source: str) -> None:
    """Raise CheckpointError, naming a variable, for a BERT, a TF2 checkpoint, or SQuAD 2.0's XLNet-type head."""
    for variable in variables:
        name = variable.removeprefix("module/")
        if _BERT_LAYER.match(name):
            raise CheckpointError(
                f"{source}: is a bert checkpoint (it holds {name}), and only ALBERT checkpoints can be read; "
                "a bert has no shared layer to keep once"
            )
        if _XLNET_HEAD.match(name):
            raise CheckpointError(
                f"{source}: has the XLNet-type head of SQuAD 2.0 ({name}), which has no Hugging Face counterpart: "
                "fine-tune with a plain start/end head (AlbertForQuestionAnswering, or run_squad_v1.py)"
            )
        if _TF2_OBJECT in name or name == _TF2_GRAPH:
            raise CheckpointError(
                f"{source}: is a TensorFlow 2 checkpoint, which names objects and not variables ({name}): "
                "save the model as a Hugging Face folder or a TF1 checkpoint"
            )


def _hugging_face_name(name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    scope, _, leaf = name.rpartition("/")
    if (module := _module(scope)) is None or leaf not in _LEAVES:
        return name
    return f"{module}.{_LEAVES[leaf]}"


def _module(scope: str) -> str | None:
    if match := _GROUP_LAYER.fullmatch(scope):
        layer, inside = f"{match[1]}.albert_layers.{match[2]}", _LAYER_SCOPES.get(match[3])
    elif match := _SHARED_LAYER.fullmatch(scope):
        layer, inside = "0.albert_layers.0", _SHARED_LAYER_SCOPES.get(match[1])
    else:
        return _SCOPES.get(scope)
    return inside and f"albert.encoder.albert_layer_groups.{layer}.{inside}"
