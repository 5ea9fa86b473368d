"""SimilarItems: attention from each item of a list to the other items that are most like it.

:class:`~rankgrad.models.tabm.TabM` takes in its output beside the features (its option ``heads``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from rankgrad._shapes import Float, Mask

_HEAD_WIDTH = 24  # of the queries and values of a head
#: Shorter queries are not scaled to unit length. PyTorch's default, 1e-12, is 0 in float16.
MIN_NORM = 1e-6
#: In prediction at most so many similarities are in memory at a time, or those of one item on a CPU
#: and of one list on a GPU.
_MAX_SIMILARITIES = 1 << 25


class SimilarItems(nn.Module):
    r"""How the most similar items of a list differ from an item, and how similar they are.

    With the inputs x of an item, of width w, their scales a, and linear layers Q_h and V_h of
    head h::

        z_i = norm(relu(linear(a ∘ x_i)))
        q_i = Q_h(z_i) / ‖Q_h(z_i)‖,   v_i = V_h(z_i)
        s_ij = q_i · q_j,   s_ii = -1
        p_ij = exp(α_h s_ij) / Σ_k exp(α_h s_ik)
        difference_i = Σ_j p_ij v_j - v_i
        similarity_i = max_j s_ij

    j and k run over the items of the list without padding. An item is the least similar to itself
    and adds nothing to its difference, so that both are finite in a list of one item. Each head
    learns its sharpness α_h, which starts at 8. Plain attention weighs an item's own value with the
    others'; the difference tells an item what distinguishes it from, say, its near-duplicate.

    The scales a, which all heads share, say which inputs make items similar. They are learned if
    ``rate`` is not 1, and start at 1; otherwise they are 1.

    The result is equivariant: permuting a list permutes the outputs. Time grows with the square of
    a list's length, and so does memory in training.

    Args:
        n_inputs: the number of inputs w of an item.
        heads: the number of heads.
        rate: the factor of the learning rate of a. The parameter is a divided by it, as in
            :class:`~rankgrad.models._perceptrons.AdaptedLinear`. With 1 there is no such parameter.

    >>> layer = SimilarItems(n_inputs=5, heads=2)
    >>> layer(torch.randn(3, 7, 5), None).shape, layer.width
    (torch.Size([3, 7, 50]), 50)
    """

    #: These have no weight decay. Before a norm the scale of weights does not matter.
    undecayed = "hidden.0.weight", "query.weight", "log_sharpness"

    def __init__(self, n_inputs: int, heads: int, rate: float = 1.0) -> None:
        super().__init__()
        size = heads * _HEAD_WIDTH
        self.heads, self.rate = heads, rate
        # One dimension, so without weight decay.
        self.scale_in = None if rate == 1 else nn.Parameter(torch.ones(n_inputs) / rate)
        self.l1_parameters = () if rate == 1 else ("scale_in",)  # what an L1 penalty applies to
        self.width = size + heads  # of the output: differences, then similarities
        self.hidden = nn.Sequential(nn.Linear(n_inputs, size), nn.ReLU(), nn.LayerNorm(size))
        self.query, self.value = nn.Linear(size, size), nn.Linear(size, size)
        self.log_sharpness = nn.Parameter(torch.full((heads, 1, 1), math.log(8.0)))

    @property
    def input_weight(self) -> Float[Tensor, "s w"]:
        """The weights of the first layer, times the scales of its inputs.

        Weights are scaled and not items, as in
        :class:`~rankgrad.models._perceptrons.AdaptedLinear`.
        """
        weight = self.hidden.get_parameter("0.weight")
        return weight if self.scale_in is None else weight * (self.rate * self.scale_in)

    @property
    def input_bias(self) -> Float[Tensor, " s"]:
        """The bias of the first layer."""
        return self.hidden.get_parameter("0.bias")

    @override
    def forward(
        self, inputs: Float[Tensor, "*b n w"], mask: Mask | None
    ) -> Float[Tensor, "*b n s"]:
        """The differences of all heads, then their similarities; arbitrary, but finite, on padding.

        Args:
            inputs: of padded lists, or of a single list ``[n, w]``; padding may hold any values.
            mask: True on real items; None if all are real.
        """
        if mask is None:
            mask = torch.ones(inputs.shape[:-1], dtype=torch.bool, device=inputs.device)
        if inputs.device.type == "cpu" and not torch.compiler.is_exporting():
            return self._attend_ragged(inputs, mask)
        items = inputs.masked_fill(~mask[..., None], 0.0)
        if torch.is_grad_enabled() or torch.compiler.is_exporting() or items.dim() != 3:
            return self._attend_padded(items, mask)
        n_lists = max(1, _MAX_SIMILARITIES // (self.heads * max(1, items.shape[1]) ** 2))
        parts = zip(items.split(n_lists), mask.split(n_lists), strict=True)
        return torch.cat([self._attend_padded(*part) for part in parts])

    def _attend_ragged(
        self, inputs: Float[Tensor, "*b n w"], mask: Mask
    ) -> Float[Tensor, "*b n s"]:
        """:meth:`forward` list by list: padding costs nothing, however unequal the lengths are."""
        hidden, query, value = self._project(inputs[mask])
        outputs = hidden.new_zeros(*mask.shape, self.width)
        lengths = [n for n in mask.sum(-1).flatten().tolist() if n > 0]
        lists = zip(query.split(lengths, -2), value.split(lengths, -2), strict=True)
        attended = [rows for of_list in lists for rows in self._attend_list(*of_list)]
        if attended:
            outputs[mask] = torch.cat(attended).to(hidden.dtype)
        return outputs

    def _attend_list(
        self, query: Float[Tensor, "h n d"], value: Float[Tensor, "h n d"]
    ) -> Iterator[Float[Tensor, "r s"]]:
        """The outputs for some items of a list after others; in training for all at once."""
        n = query.shape[-2]
        n_rows = n if torch.is_grad_enabled() else max(1, _MAX_SIMILARITIES // (self.heads * n))
        columns = torch.arange(n)
        for rows in columns.split(n_rows):
            is_item_itself = rows[:, None] == columns
            own = slice(int(rows[0]), int(rows[-1]) + 1)
            similarity = (query[:, own] @ query.mT).masked_fill(is_item_itself, -1.0)
            weights = (similarity * self.log_sharpness.exp()).softmax(-1)
            difference = weights @ value - value[:, own]
            yield _concatenate_heads(difference, similarity)

    def _attend_padded(self, items: Float[Tensor, "*b n w"], mask: Mask) -> Float[Tensor, "*b n s"]:
        """:meth:`forward` of all lists at once, on items whose padding is finite."""
        hidden, query, value = self._project(items)
        n = items.shape[-2]
        is_item_itself = torch.eye(n, dtype=torch.bool, device=items.device)
        is_padding = ~mask[..., None, None, :] & ~is_item_itself
        similarity = (query @ query.mT).masked_fill(is_padding | is_item_itself, -1.0)
        # Filled after the product: the gradient of the sharpness would be 0 · inf, which is NaN.
        logits = (similarity * self.log_sharpness.exp()).masked_fill(is_padding, float("-inf"))
        difference = logits.softmax(-1) @ value - value
        # A maximum over no items is an error, and exported programs take lists without items.
        if torch.compiler.is_exporting() or n == 0:
            similarity = F.pad(similarity, (0, 1), value=-1.0)
        return _concatenate_heads(difference, similarity).to(hidden.dtype)

    def _project(
        self, items: Float[Tensor, "*b n w"]
    ) -> tuple[Float[Tensor, "*b n s"], Float[Tensor, "*b h n d"], Float[Tensor, "*b h n d"]]:
        """The z of items, and the q and v of each head."""
        hidden = self.hidden[1:](F.linear(items, self.input_weight, self.input_bias))
        query = F.normalize(self._split_heads(self.query(hidden)), dim=-1, eps=MIN_NORM)
        value = self._split_heads(self.value(hidden))
        # Copies of an item sum the same terms in another order. Prediction sums in float64, so that
        # they get equal scores; training sums in the items' own type, which is faster.
        if torch.is_inference_mode_enabled() or torch.compiler.is_exporting():
            query, value = query.double(), value.double()
        return hidden, query, value

    def _split_heads(self, items: Float[Tensor, "*b n s"]) -> Float[Tensor, "*b h n d"]:
        split: Tensor = items.unflatten(-1, (self.heads, -1))
        return split.transpose(-3, -2)


def _concatenate_heads(
    difference: Float[Tensor, "*b h r d"], similarity: Float[Tensor, "*b h r n"]
) -> Float[Tensor, "*b r s"]:
    """The differences of all heads, then the greatest similarity of each."""
    outputs = difference.transpose(-3, -2).flatten(-2), similarity.amax(-1).mT
    return torch.cat(outputs, -1)
