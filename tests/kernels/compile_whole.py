"""Each loss as it is and compiled whole: value and gradient, and labels that are too large.

Arguments are specs. Those with the prefix "eager:" are computed without kernels.
"""

import sys

import torch

from rankgrad import kernels, losses

generator = torch.Generator().manual_seed(0)
SCORES = torch.randn(2, 5, generator=generator, dtype=torch.float64)
LABELS = torch.randint(0, 3, (2, 5), generator=generator).double()
MASK = torch.tensor([[True] * 5, [True, False, True, True, False]])


def outcome(call, mask):
    scores = SCORES.clone().requires_grad_()
    value = call(scores, LABELS, mask)
    value.backward()
    return value.detach(), scores.grad


def refusal(call):
    """What is said of a label that is too large for the gain 2^y - 1; None if nothing is."""
    labels = LABELS.clone()
    labels[1, 2] = 2000.0
    try:
        call(SCORES, labels)
    except ValueError as error:
        return str(error)


for spec in sys.argv[1:]:
    try:
        torch._dynamo.reset()
        mode, _, name = spec.rpartition(":")
        kernels.use(mode or "auto")
        loss = losses.get(name)
        whole = torch.compile(loss, fullgraph=True, backend="aot_eager")
        for mask in (None, MASK):
            for ours, theirs in zip(outcome(whole, mask), outcome(loss, mask), strict=True):
                torch.testing.assert_close(ours, theirs)
        assert refusal(whole) == refusal(loss), refusal(whole)
    except Exception as error:
        print(spec, type(error).__name__, str(error)[:1500])
    else:
        print(spec, "fine")
