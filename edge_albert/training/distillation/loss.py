"""What a student learns from a teacher: soft labels, sentence vectors, hidden states, attention maps, and the labels.

    soft         T² · KL(teacher ‖ student), both softened by the temperature T (Hinton et al. 2015, arXiv 1503.02531);
                 for a regression the squared difference to the teacher's value
    hard         cross-entropy (or squared difference) with the true label, for the rows that have one
    sentence     1 - cosine of the student's vector of the whole text with the teacher's
    hidden       mean squared difference of the hidden states of chosen iterations to those of chosen layers of the
                 teacher, through a learned projection (TinyBERT, Jiao et al. 2020, arXiv 1909.10351, equation 8)
    attention    KL(teacher ‖ student) of where each token looks, in the same iterations (MobileBERT, Sun et al. 2020,
                 arXiv 2004.02984, section 3.2); the mean over the heads where their numbers differ

The loss of a batch is the weighted sum of all five, each a mean over the rows of the batch; a row without a label has
no hard part. The projections are learned with the student and thrown away afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from edge_albert.config import AlbertConfig
from edge_albert.errors import EdgeAlbertError
from edge_albert.model import AlbertOutput
from edge_albert.training.distillation.teacher import VECTORS, Teacher, sentence_vectors
from edge_albert.training.finetuning.early_exit import weighted

UNLABELLED = -1  # the label number of a row without one; a regression's is NaN

# of the teacher and the student; "both": the student's mean and its [CLS] are held to the teacher's mean alike
STUDENT_VECTORS = (*VECTORS, "both")
Layers = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Matching:
    """What counts how much. layers: (student's iteration, teacher's layer) pairs, 0 the embeddings; None spreads the
    student's iterations evenly over the teacher's layers. vector: the sentence vector, one of STUDENT_VECTORS.
    """

    soft: float = 0.0
    hard: float = 0.0
    sentence: float = 0.0
    hidden: float = 0.0
    attention: float = 0.0
    temperature: float = 2.0
    layers: Layers | None = None
    vector: str = "mean"

    @property
    def teachers_vector(self) -> str:
        """What the teacher is asked for."""
        return "mean" if self.vector == "both" else self.vector

    @property
    def by_layer(self) -> bool:
        """Whether the teacher has to be looked at layer by layer, on the student's own tokens."""
        return self.hidden > 0 or self.attention > 0

    def checked(self, task: str) -> Matching:
        """Itself. Raises EdgeAlbertError for weights or a temperature that make no sense for the task."""
        weights = {name: getattr(self, name) for name in ("soft", "hard", "sentence", "hidden", "attention")}
        for name, weight in weights.items():
            if not 0 <= weight < float("inf"):
                raise EdgeAlbertError(f"--{name} {weight}: a weight is a number of at least 0")
        if not 0 < self.temperature < float("inf"):
            raise EdgeAlbertError(f"--temperature {self.temperature}: must be above 0")
        if self.vector not in STUDENT_VECTORS:
            raise EdgeAlbertError(f"--sentence-vector {self.vector!r} is not one of {', '.join(STUDENT_VECTORS)}")
        if task == "sentence-embedding" and (self.soft or self.hard):
            raise EdgeAlbertError("--soft and --hard weigh labels, and a sentence embedding has none: use --sentence")
        if task == "sentence-embedding" and self.vector == "cls":
            raise EdgeAlbertError("--sentence-vector cls: a sentence embedding is the mean of the tokens")
        if not any(weights.values()):
            raise EdgeAlbertError(f"all weights are 0: give one of {', '.join(f'--{name}' for name in weights)}")
        return self

    def with_layers(self, iterations: int, teacher: Teacher) -> Matching:
        """With the pairs of layers settled. Raises EdgeAlbertError for one that the student or the teacher lacks.

        iterations: how often the student applies a layer.
        """
        spread = tuple((i, max(1, round(i * teacher.layers / iterations))) for i in range(1, iterations + 1))
        layers = spread if self.layers is None else self.layers
        for mine, its in layers:
            if not (0 <= mine <= iterations and 0 <= its <= teacher.layers):
                raise EdgeAlbertError(
                    f"--layers {mine}:{its}: the student has the layers 0 … {iterations}, the teacher 0 … "
                    f"{teacher.layers} (0: the embeddings)"
                )
        if self.attention and not any(mine and its for mine, its in layers):
            raise EdgeAlbertError("--attention: --layers names the embeddings alone, which have no attention map")
        return replace(self, layers=layers)


@dataclass(frozen=True)
class Targets:
    """What the student is held to, for the B rows of a batch; None where it is not asked for.

    labels: (B,), UNLABELLED or NaN for none. outputs: the teacher's, (B, K). vectors: its unit vectors, (B, Ht).
    views: its hidden states and attentions of the same tokens.
    """

    labels: Tensor
    outputs: Tensor | None = None
    vectors: Tensor | None = None
    views: AlbertOutput | None = None


class DistillationLoss(nn.Module):
    """Student's outputs and targets ► the loss of the batch, and its parts as plain numbers' tensors.

    config: the student's. basis: see `Isometry`.
    """

    def __init__(
        self, config: AlbertConfig, task: str, matching: Matching, teacher: Teacher, basis: Tensor | None = None
    ) -> None:
        super().__init__()
        self.task, self.matching = task, matching
        mine, its = config.hidden_size, teacher.hidden_size
        self.sentence = Isometry(mine, its, basis) if matching.sentence else None
        self.hidden = nn.Linear(mine, its, bias=False) if matching.hidden else None
        if self.hidden is not None:
            nn.init.eye_(self.hidden.weight) if mine == its else nn.init.orthogonal_(self.hidden.weight)

    def forward(self, encoded: AlbertOutput, outputs: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        """outputs: the student's logits (B, K), or its embeddings, which are not looked at.

        With early exit the logits after every iteration, (N, B, K): soft and hard are then weighted means over them.
        """
        rows: dict[str, Tensor] = {}  # each (B,)
        matching = self.matching
        answers = (outputs if outputs.ndim == 3 else outputs[None]).float()
        if matching.soft and targets.outputs is not None:
            rows["soft"] = weighted([self._soft(answer, targets.outputs) for answer in answers])
        if matching.hard:
            rows["hard"] = weighted([self._hard(answer, targets.labels) for answer in answers])
        if self.sentence is not None and targets.vectors is not None:
            kinds = VECTORS if matching.vector == "both" else (matching.vector,)
            mine = [sentence_vectors(encoded, kind).float() for kind in kinds]
            rows["sentence"] = 1 - torch.stack([self.sentence.cosine(one, targets.vectors) for one in mine]).mean(dim=0)
        if targets.views is not None:
            rows |= self._by_layer(encoded, targets.views)
        parts = {name: values.mean() for name, values in rows.items()}
        loss = torch.stack([getattr(matching, name) * value for name, value in parts.items()]).sum()
        return loss, {name: value.detach() for name, value in parts.items()}

    def _soft(self, mine: Tensor, its: Tensor) -> Tensor:
        if self.task == "text-regression":
            return (mine - its).square().squeeze(-1)
        return soft_label_loss(mine, its, self.matching.temperature)

    def _hard(self, mine: Tensor, labels: Tensor) -> Tensor:
        if self.task == "text-regression":
            known = ~labels.isnan()
            return torch.where(known, mine.squeeze(-1) - labels.nan_to_num(), 0.0).square()
        return F.cross_entropy(mine, labels, ignore_index=UNLABELLED, reduction="none")

    def _by_layer(self, encoded: AlbertOutput, views: AlbertOutput) -> dict[str, Tensor]:
        mask = encoded.attention_mask
        assert mask is not None
        assert self.matching.layers is not None
        rows: dict[str, Tensor] = {}
        if self.hidden is not None:
            pairs = [(encoded.hidden_states[i], views.hidden_states[j]) for i, j in self.matching.layers]
            losses = [hidden_loss(self.hidden(mine.float()), its, mask) for mine, its in pairs]
            rows["hidden"] = torch.stack(losses).mean(dim=0)
        if self.matching.attention:
            maps = [(encoded.attentions[i - 1], views.attentions[j - 1]) for i, j in self.matching.layers if i and j]
            rows["attention"] = torch.stack([attention_loss(mine, its, mask) for mine, its in maps]).mean(dim=0)
        return rows


# -- the parts, each ► (B,) --------------------------------------------------------------------------------------------


def soft_label_loss(mine: Tensor, its: Tensor, temperature: float) -> Tensor:
    """T² · KL(teacher ‖ student) of logits (B, K); T² keeps the gradient's size whatever the temperature."""
    log_mine, log_its = (F.log_softmax(logits / temperature, dim=-1) for logits in (mine, its))
    return temperature**2 * F.kl_div(log_mine, log_its, reduction="none", log_target=True).sum(dim=-1)


def hidden_loss(mine: Tensor, its: Tensor, mask: Tensor) -> Tensor:
    """Mean squared difference of (B, S, H) over the tokens that mask (B, S) does not hide, and over H."""
    difference = (mine.float() - its.float()).square().mean(dim=-1)  # (B, S)
    return (difference * mask).sum(dim=1) / mask.sum(dim=1)


def attention_loss(mine: Tensor, its: Tensor, mask: Tensor) -> Tensor:
    """KL(teacher ‖ student) of probabilities (B, A, S, S), its mean over heads and the tokens that are not hidden."""
    mine, its = mine.float(), its.float()
    if mine.shape[1] != its.shape[1]:
        mine, its = mine.mean(dim=1, keepdim=True), its.mean(dim=1, keepdim=True)
    divergence = (torch.special.xlogy(its, its) - its * mine.clamp_min(1e-12).log()).sum(dim=-1)  # (B, A, S)
    return (divergence.mean(dim=1) * mask).sum(dim=1) / mask.sum(dim=1)


class Isometry(nn.Module):
    """A learned map from the narrower of two spaces into the wider that keeps every angle: B·R, R a learned rotation.

    So the cosine of two student's vectors is the cosine of their images, which are what was trained: a projection that
    could bend angles would leave the student's own vectors, the ones that are used, unlike the teacher's.

    basis: B, (wider, narrower), orthonormal columns: the part of the wider space that is reached; by default its first
    axes. For a narrower student the principal axes of the teacher's vectors lose least.
    """

    basis: Tensor

    def __init__(self, mine: int, its: int, basis: Tensor | None = None) -> None:
        super().__init__()
        narrow, wide = sorted((mine, its))
        self.up = mine <= its  # the student's vectors are mapped; else the teacher's
        self.register_buffer("basis", torch.eye(wide, narrow) if basis is None else basis)
        rotation = nn.Linear(narrow, narrow, bias=False)
        nn.init.eye_(rotation.weight)
        # Cayley's map: 6 ms a step for 256 on one core, where the matrix exponential takes 40
        self.rotation = orthogonal(rotation, orthogonal_map="cayley")

    def cosine(self, mine: Tensor, its: Tensor) -> Tensor:
        """Unit vectors (B, H) and (B, Ht) ► (B,)."""
        narrow, wide = (mine, its) if self.up else (its, mine)
        return (self.rotation(narrow) * (wide @ self.basis)).sum(dim=-1)


def principal_axes(vectors: Tensor, count: int) -> Tensor:
    """The `count` directions along which unit vectors (N, H) are longest, as columns (H, count)."""
    moments = vectors.double().T @ vectors.double()  # (H, H)
    return torch.linalg.eigh(moments)[1].flip(1)[:, :count].float().contiguous()
