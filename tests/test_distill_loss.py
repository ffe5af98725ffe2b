"""What a student is held to, each part beside its definition in PyTorch, NumPy or SciPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")

from torch.nn import functional as F

from edge_albert.config import preset
from edge_albert.errors import EdgeAlbertError
from edge_albert.model import AlbertOutput
from edge_albert.training.distillation.loss import (
    DistillationLoss,
    Isometry,
    Matching,
    Targets,
    attention_loss,
    hidden_loss,
    principal_axes,
    soft_label_loss,
)
from edge_albert.training.distillation.teacher import Teacher

MINE, ITS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20.0).view(5, 4) % 7


def a_teacher(layers: int, hidden_size: int = 8) -> Teacher:
    return Teacher("t", None, "text-classification", (), hidden_size, layers, 2, 64, "", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 8.0])
def test_soft_labels_beside_scipy(temperature: float) -> None:
    entropy = pytest.importorskip("scipy.stats").entropy
    special = pytest.importorskip("scipy.special")
    mine, its = (special.softmax(x.double().numpy() / temperature, axis=1) for x in (MINE, ITS))
    found = soft_label_loss(MINE.double(), ITS.double(), temperature).numpy()
    assert found == pytest.approx(temperature**2 * entropy(its, mine, axis=1))


def test_hinton_limit() -> None:
    """Section 2.1 of the paper: for a high temperature the gradient is the difference of centred logits over K."""
    mine = MINE.double().requires_grad_()
    soft_label_loss(mine, ITS.double(), 1e4).sum().backward()
    centred = [x.detach().double() - x.detach().double().mean(dim=1, keepdim=True) for x in (MINE, ITS)]
    assert torch.allclose(mine.grad, (centred[0] - centred[1]) / 4, atol=1e-3)


def test_hidden_states_beside_mse_without_padding() -> None:
    random = torch.Generator().manual_seed(1)
    mine, its = (torch.randn(2, 6, 8, generator=random) for _ in range(2))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]])
    expected = [F.mse_loss(mine[0], its[0]), F.mse_loss(mine[1, :2], its[1, :2])]
    assert torch.allclose(hidden_loss(mine, its, mask), torch.stack(expected))


@pytest.mark.parametrize("heads", [3, 2])
def test_attention_beside_scipy(heads: int) -> None:
    """Padded keys have no probability, padded queries do not count; heads of another number are averaged."""
    entropy = pytest.importorskip("scipy.stats").entropy
    random = torch.Generator().manual_seed(2)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    mine, its = (
        torch.randn(2, count, 4, 4, generator=random).masked_fill(~mask.bool()[:, None, None], -torch.inf).softmax(-1)
        for count in (heads, 3)
    )
    found = attention_loss(mine, its, mask)
    a, b = (x.numpy() if heads == 3 else x.mean(dim=1, keepdim=True).numpy() for x in (mine, its))
    for row, length in enumerate((4, 3)):
        expected = entropy(b[row, :, :length, :length], a[row, :, :length, :length], axis=-1).mean()
        assert float(found[row]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("mine", "its"), [(6, 10), (10, 6), (8, 8)])
def test_a_learned_projection_keeps_angles(mine: int, its: int) -> None:
    """It learns, and the cosine of two vectors stays that of their images."""
    random = torch.Generator().manual_seed(3)
    student = F.normalize(torch.randn(200, mine, generator=random), dim=-1)
    narrow = min(mine, its)
    turned = torch.linalg.qr(torch.randn(narrow, narrow, generator=random))[0]
    turned[:, 0] *= torch.linalg.det(turned).sign()  # a rotation, no mirror
    teacher = F.normalize(F.pad(student[:, :narrow] @ turned, (0, its - narrow)), dim=-1)
    isometry = Isometry(mine, its)
    before = float(isometry.cosine(student, teacher).detach().mean())
    optimizer = torch.optim.Adam(isometry.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        (-isometry.cosine(student, teacher).mean()).backward()
        optimizer.step()
    image = isometry.basis @ isometry.rotation.weight  # (wide, narrow)
    assert torch.allclose(image.T @ image, torch.eye(narrow), atol=1e-5)
    assert float(isometry.cosine(student, teacher).detach().mean()) > before + 0.5


def test_cls_beside_the_mean_is_the_mean_of_both() -> None:
    torch.manual_seed(0)
    encoded = AlbertOutput(torch.randn(3, 5, 16), None, torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [1] * 4 + [0]]))
    targets = Targets(torch.zeros(3), vectors=F.normalize(torch.randn(3, 24), dim=-1))
    config = replace(preset("tiny"), hidden_size=16, num_attention_heads=4)

    def loss(vector: str) -> float:
        made = DistillationLoss(config, "sentence-embedding", Matching(sentence=1, vector=vector), a_teacher(2, 24))
        return made(encoded, torch.zeros(3, 1), targets)[0].item()

    assert loss("both") == pytest.approx((loss("mean") + loss("cls")) / 2)
    assert loss("mean") != pytest.approx(loss("cls"), abs=1e-3)
    assert Matching(sentence=1, vector="both").checked("sentence-embedding").teachers_vector == "mean"


def test_principal_axes_beside_numpy() -> None:
    vectors = np.random.default_rng(4).standard_normal((50, 6)) * [5, 4, 3, 1, 1, 1]
    expected = np.linalg.svd(vectors)[2][:3].T
    found = principal_axes(torch.from_numpy(vectors).float(), 3).numpy()
    assert np.abs(found.T @ expected) == pytest.approx(np.eye(3), abs=1e-4)


@pytest.mark.parametrize(
    ("iterations", "layers", "expected"),
    [(6, 6, [(i, i) for i in range(1, 7)]), (4, 12, [(1, 3), (2, 6), (3, 9), (4, 12)]), (6, 2, None)],
)
def test_iterations_spread_over_the_teacher(
    iterations: int, layers: int, expected: list[tuple[int, int]] | None
) -> None:
    """TinyBERT's uniform mapping where it is one; the last meets the last in any case."""
    found = Matching(hidden=1).with_layers(iterations, a_teacher(layers)).layers
    assert found is not None
    assert found[-1] == (iterations, layers)
    assert expected is None or list(found) == expected


@pytest.mark.parametrize(
    ("matching", "task", "said"),
    [
        (Matching(), "text-classification", "all weights are 0"),
        (Matching(soft=1, temperature=0), "text-classification", "--temperature 0: must be above 0"),
        (Matching(soft=1, temperature=-2), "text-classification", "--temperature -2: must be above 0"),
        (Matching(soft=float("nan")), "text-classification", "--soft nan: a weight is a number of at least 0"),
        (Matching(hidden=-1), "text-regression", "--hidden -1"),
        (Matching(soft=1, sentence=1), "sentence-embedding", "a sentence embedding has none"),
        (Matching(sentence=1, vector="cls"), "sentence-embedding", "is the mean of the tokens"),
        (Matching(sentence=1, vector="max"), "text-classification", "is not one of mean, cls"),
    ],
)
def test_weights_that_make_no_sense(matching: Matching, task: str, said: str) -> None:
    with pytest.raises(EdgeAlbertError, match=said):
        matching.checked(task)


@pytest.mark.parametrize("layers", [((7, 1),), ((1, 13),), ((-1, 2),)])
def test_layers_that_are_not_there(layers: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(EdgeAlbertError, match="the student has the layers 0 … 6, the teacher 0 … 12"):
        Matching(hidden=1, layers=layers).with_layers(6, a_teacher(12))


def test_embeddings_have_no_attention() -> None:
    with pytest.raises(EdgeAlbertError, match="names the embeddings alone"):
        Matching(attention=1, layers=((0, 0),)).with_layers(6, a_teacher(12))
