"""What pre-training minimises: the masked words (MLM) and the order of two segments (SOP, or NSP).

Only masked positions reach the output layer: at 15 % of the tokens that leaves out most of H·E + E·V multiply-adds per
token, which for a small ALBERT would be a fifth of the work.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge_albert.model import AlbertForPreTraining
from edge_albert.training.pretraining.examples import Batch


class PretrainingLoss(nn.Module):
    """A batch ► (sum of the MLM losses, sum of the order losses, how many of both were right (2,)).

    Sums and not means, so that parts of a step can be added up whatever their size. Without an order objective the
    model's pooler and order head get no gradient, and a checkpoint keeps them as they were.
    """

    def __init__(self, model: AlbertForPreTraining, objective: str) -> None:
        super().__init__()
        self.model, self.has_order = model, objective != "none"
        if not self.has_order:
            for name, parameter in model.named_parameters():
                if name.startswith(("sop_classifier.", "albert.pooler.")):
                    parameter.requires_grad_(False)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        encoded = self.model.encode(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        hidden = encoded.last_hidden_state.flatten(0, 1).index_select(0, batch.masked)  # (B·S, H) ► (M, H)
        logits = self.model.predictions(hidden).float()  # (M, V)
        loss = F.cross_entropy(logits, batch.labels, reduction="sum")
        right = (logits.argmax(dim=-1) == batch.labels).sum()
        if not self.has_order:
            return loss, torch.zeros_like(loss), torch.stack([right, torch.zeros_like(right)])
        order = self.model.sop_classifier(encoded.pooler_output).float()  # (B, 2)
        order_loss = F.cross_entropy(order, batch.order, reduction="sum")
        return loss, order_loss, torch.stack([right, (order.argmax(dim=-1) == batch.order).sum()])


def means(sums: Sequence[float], masked: float, pairs: float) -> dict[str, float]:
    """The figures to report, from the four sums of `PretrainingLoss`, the masked tokens and the pairs they are over."""
    mlm, order, mlm_right, order_right = sums
    return {
        "mlm_loss": mlm / masked,
        "mlm_accuracy": mlm_right / masked,
        "order_loss": order / pairs,
        "order_accuracy": order_right / pairs,
    }
