"""Names that calibration, the converters and reports share: of weights, and of the activations around the products.

A weight is called as in the checkpoint without the leading "albert.": layer.ffn.weight. Later groups and inner layers
keep their numbers: layer.1.0.ffn.weight. An activation site is what goes into, or comes out of, a matrix product:
layer.ffn.input, layer.ffn.output. Query, key and value read one site, layer.attention.input. These names stand in range
files, so they must not change.
"""

from __future__ import annotations

from edge_albert.config import AlbertConfig

LAYER_SITES = (
    "attention.input",
    "attention.query.output",
    "attention.key.output",
    "attention.value.output",
    "attention.context",
    "attention.dense.output",
    "ffn.input",
    "ffn.output",
    "ffn_output.input",
    "ffn_output.output",
)
PROJECTION_SITES = ("embeddings.projection.input", "embeddings.projection.output")
POOLER_SITES = ("pooler.input", "pooler.output")
LAYER_LINEARS = ("attention.query", "attention.key", "attention.value", "attention.dense", "ffn", "ffn_output")

_GROUPS = "encoder.albert_layer_groups."
_PROJECTION = "encoder.embedding_hidden_mapping_in"
_INPUTS = {"attention.query": "attention.input", "attention.key": "attention.input",
           "attention.value": "attention.input", "attention.dense": "attention.context"}  # fmt: skip


def short_name(name: str) -> str:
    """albert.encoder.albert_layer_groups.0.albert_layers.0.ffn ► layer.ffn"""
    name = name.removeprefix("albert.").replace(_GROUPS, "layer.").replace(".albert_layers.", ".")
    return name.replace("layer.0.0.", "layer.")


def input_site(linear: str) -> str:
    """The site that a linear layer, by its short name, reads: layer.attention.key ► layer.attention.input"""
    if linear == _PROJECTION:
        return PROJECTION_SITES[0]
    for ending, site in _INPUTS.items():
        if linear.endswith("." + ending):
            return linear.removesuffix(ending) + site
    return linear + ".input"


def output_site(linear: str) -> str:
    """The site that a linear layer, by its short name, writes (bias added): layer.ffn ► layer.ffn.output"""
    return PROJECTION_SITES[1] if linear == _PROJECTION else linear + ".output"


def activation_sites(config: AlbertConfig, *, pooled: bool) -> dict[str, int]:
    """{site: iterations that pass it}; 0 for a site outside the loop. pooled: the task has a pooler."""
    sites = dict.fromkeys(PROJECTION_SITES, 0)
    for group, times in enumerate(config.group_runs()):
        for inner in range(config.inner_group_num):
            prefix = short_name(f"{_GROUPS}{group}.albert_layers.{inner}.")
            sites.update({prefix + site: times for site in LAYER_SITES})
    return {**sites, **dict.fromkeys(POOLER_SITES if pooled else (), 0)}


def quantizable_weights(config: AlbertConfig, *, pooled: bool) -> dict[str, str]:
    """{weight name: the site its product reads}, of the matrices whose precision can be chosen; "" for look-up tables.

    The task head is none of them: it stays float32.
    """
    out = {f"embeddings.{table}.weight": "" for table in ("word", "token_type", "position")}
    linears = [_PROJECTION]
    for group in range(config.num_hidden_groups):
        for inner in range(config.inner_group_num):
            prefix = short_name(f"{_GROUPS}{group}.albert_layers.{inner}.")
            linears += [prefix + linear for linear in LAYER_LINEARS]
    linears += ["pooler"] if pooled else []
    return {**out, **{f"{linear}.weight": input_site(linear) for linear in linears}}
