"""The losses of other libraries, as steps on the same inputs.

Each library is imported when it is asked for; one that is not installed is named with the reason
and left out. A peer stands beside the loss of ours that computes the same thing; where it differs,
its name says so, and the cosine of the two gradients is reported for all.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import plain
import torch
from measure import JaxStep, Loss, Step, TensorFlowStep, TorchStep
from torch import Tensor

from rankgrad import losses
from rankgrad.losses import RelaxedMetric
from rankgrad.metrics import metrics


@dataclass(frozen=True)
class Peer:
    """Another's loss: what it is called there, and how to make a step of it."""

    what: str
    make: Callable[[Tensor, Tensor], Step]
    most: int | None = None  # items, where longer lists take minutes or do not fit


Table = dict[str, Peer]
PLAIN = (
    "neural_ndcg",
    "smoothi_ndcg",
    "approx_ndcg",
    "lambdaloss",
    "ranknet",
    "listmle",
    "pirank_ndcg@10",
    "softsort_ndcg",
    "lapsum_ndcg",
    "fastsort_ndcg",
)


def torch_peer(what: str, loss: Loss, *, most: int | None = None, capturable: bool = False) -> Peer:
    """A peer that is a function of scores and labels."""

    def make(scores: Tensor, labels: Tensor) -> Step:
        return TorchStep(loss, scores, labels, capturable=capturable)

    return Peer(what, make, most)


def allrank(device: str) -> Table:
    """Losses of allRank 1.4: padded tensors and n × n matrices; most wait for the device."""
    # What it reads files with needs torchvision and gcsfs; the losses take one constant from there.
    reading = types.ModuleType("allrank.data.dataset_loading")
    reading.PADDED_Y_VALUE = -1  # type: ignore[attr-defined]
    files = types.ModuleType("allrank.utils.file_utils")
    files.is_gs_path = files.copy_file_to_local = None  # type: ignore[attr-defined]
    sys.modules.setdefault(reading.__name__, reading)
    sys.modules.setdefault(files.__name__, files)
    from allrank.models import losses as theirs

    second = functools.partial(theirs.lambdaLoss, weighing_scheme="ndcgLoss2_scheme")
    rank = functools.partial(theirs.lambdaLoss, weighing_scheme="lambdaRank_scheme", k=10)
    return {
        "neural_ndcg": torch_peer("neuralNDCG", theirs.neuralNDCG),
        "neural_ndcg(transposed=true)": torch_peer(
            "neuralNDCG_transposed", theirs.neuralNDCG_transposed
        ),
        "approx_ndcg": torch_peer("approxNDCGLoss", theirs.approxNDCGLoss),
        "lambdaloss": torch_peer("lambdaLoss, ndcgLoss2_scheme", second),
        "lambdarank@10": torch_peer("lambdaLoss, lambdaRank_scheme, k=10 (of both items)", rank),
        # It lists the pairs in Python.
        "ranknet": torch_peer("rankNet", theirs.rankNet, most=1000),
        "listmle": torch_peer("listMLE", theirs.listMLE),
        "listnet": torch_peer("listNet", theirs.listNet),
    }


def rax(device: str) -> Table:
    """Losses of rax 0.4, jitted value_and_grad."""
    import jax

    if not hasattr(jax, "util"):  # newer JAX has dropped it; rax wraps a function's name with it
        jax.util = types.SimpleNamespace(wraps=lambda f, **_: functools.wraps(f))
    import rax

    def peer(what: str, loss: Callable[..., Any], most: int | None = None) -> Peer:
        return Peer(what, functools.partial(JaxStep, loss), most)

    def pairs(**options: Any) -> Callable[..., Any]:
        return functools.partial(rax.pairwise_logistic_loss, **options)

    def approximate(scores: Any, labels: Any) -> Any:
        return rax.approx_t12n(rax.ndcg_metric)(scores, labels)

    second = functools.partial(rax.dcg2_lambdaweight, normalize=True)
    first = functools.partial(rax.dcg_lambdaweight, normalize=True, topn=10)
    return {
        "approx_ndcg": peer("approx_t12n(ndcg_metric)", approximate),
        "lambdaloss": peer("pairwise_logistic, dcg2", pairs(lambdaweight_fn=second)),
        "lambdarank@10": peer("pairwise_logistic, dcg, topn=10", pairs(lambdaweight_fn=first)),
        "ranknet": peer("pairwise_logistic_loss", pairs()),
        "listmle": peer("listmle_loss", rax.listmle_loss),
        "softmax": peer("softmax_loss", rax.softmax_loss),
    }


def tf_ranking(device: str, xla: bool = False) -> Table:
    """Losses of TF-Ranking 0.5, Keras's but for NeuralSort; as graphs or compiled by XLA."""
    if device != "cpu":
        raise RuntimeError("timed on CPUs alone")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow

    tensorflow.config.threading.set_intra_op_parallelism_threads(torch.get_num_threads())
    tensorflow.config.threading.set_inter_op_parallelism_threads(torch.get_num_threads())
    from tensorflow_ranking.python import losses_impl
    from tensorflow_ranking.python.keras import losses as theirs

    def peer(what: str, loss: Callable[..., Any]) -> Peer:
        return Peer(what, functools.partial(TensorFlowStep, loss, xla=xla))

    def neural_sort(kind: Any) -> Callable[..., Any]:
        loss = kind(None, temperature=1.0)

        def mean(labels: Any, scores: Any) -> Any:
            return tensorflow.reduce_mean(loss.compute_unreduced_loss(labels, scores)[0])

        return mean

    second = theirs.PairwiseLogisticLoss(lambda_weight=theirs.NDCGLambdaWeightV2())
    rank = theirs.NDCGLambdaWeight(topn=10, smooth_fraction=1.0)
    return {
        "approx_ndcg": peer("ApproxNDCGLoss", theirs.ApproxNDCGLoss(temperature=1.0)),
        "lambdaloss": peer("PairwiseLogisticLoss, NDCGLambdaWeightV2", second),
        "lambdarank@10": peer(
            "PairwiseLogisticLoss, NDCGLambdaWeight, topn=10",
            theirs.PairwiseLogisticLoss(lambda_weight=rank),
        ),
        "ranknet": peer("PairwiseLogisticLoss", theirs.PairwiseLogisticLoss()),
        "listmle": peer("ListMLELoss", theirs.ListMLELoss()),
        "softmax": peer("SoftmaxLoss", theirs.SoftmaxLoss()),
        "neuralsort_ce": peer(
            "NeuralSortCrossEntropyLoss (of labels through NeuralSort)",
            neural_sort(losses_impl.NeuralSortCrossEntropyLoss),
        ),
        "pirank_ndcg": peer("NeuralSortNDCGLoss", neural_sort(losses_impl.NeuralSortNDCGLoss)),
    }


class PTRankingStep(TorchStep):
    """A step of a ranker of PTRanking, without its network and its optimizer.

    Its method computes the loss and calls ``backward``. Items come sorted by label, as from its
    loader; gradients are given in the order of the others'.
    """

    def __init__(self, ranker: Any, scores: Tensor, labels: Tensor) -> None:
        from ptranking.data.data_utils import LABEL_TYPE

        labels, self.order = labels.sort(dim=1, descending=True)
        ranker.optimizer = types.SimpleNamespace(zero_grad=lambda: None, step=lambda: None)
        loss = functools.partial(ranker.inner_train, presort=True, label_type=LABEL_TYPE.MultiLabel)
        super().__init__(loss, scores.gather(1, self.order), labels)

    def run(self) -> None:
        self.scores.grad = None
        self.last = self.loss(self.scores, self.labels).detach()

    def gradient(self) -> Tensor:
        found = super().gradient()
        return torch.zeros_like(found).scatter(1, self.order.cpu(), found)


def ptranking(device: str) -> Table:
    """Losses of PTRanking 0.0.5: padded tensors and n × n matrices."""
    from ptranking.ltr_adhoc.listwise.approxNDCG import ApproxNDCG
    from ptranking.ltr_adhoc.listwise.lambdaloss import LambdaLoss
    from ptranking.ltr_adhoc.listwise.lambdarank import LambdaRank
    from ptranking.ltr_adhoc.listwise.listmle import ListMLE
    from ptranking.ltr_adhoc.listwise.listnet import ListNet
    from ptranking.ltr_adhoc.pairwise.ranknet import RankNet

    network = {"sf_para_dict": {"ffnns": {"num_features": 1, "num_layers": 1}}}
    place = {"gpu": device == "cuda", "device": device}

    def peer(what: str, kind: Any, **options: Any) -> Peer:
        given = {"model_para_dict": options} if options else {}

        def make(scores: Tensor, labels: Tensor) -> Step:
            if "k" in options:  # None is none of the pairs there
                options["k"] = scores.shape[1]
            return PTRankingStep(kind(**network, **place, **given), scores, labels)

        return Peer(what, make)

    return {
        "approx_ndcg": peer("ApproxNDCG (by ideals of all lists)", ApproxNDCG, alpha=1.0),
        "lambdaloss": peer(
            "LambdaLoss, NDCG_Loss2 (of discounts inverted)",
            LambdaLoss,
            k=None,
            sigma=1.0,
            loss_type="NDCG_Loss2",
        ),
        "lambdarank": peer("LambdaRank", LambdaRank, sigma=1.0),
        "ranknet": peer("RankNet (of ties too)", RankNet, sigma=1.0),
        "listmle": peer("ListMLE", ListMLE, samples_per_query=1),
        "listnet": peer("ListNet", ListNet),
    }


def torchsort(device: str) -> Table:
    """Soft ranks of torchsort 0.1: the same projection; the metric over its ranks is ours."""
    import torchsort

    if device == "cuda":
        import torchsort.isotonic_cuda

    ranks = plain.PlainRanks(of=lambda scores: torchsort.soft_rank(-scores))
    return {"fastsort_ndcg": torch_peer("soft_rank", RelaxedMetric(metrics.get("ndcg"), ranks))}


def diffsort(device: str) -> Table:
    """Sorting networks of diffsort 0.2: another relaxation of the permutation than NeuralSort's."""
    from diffsort import DiffSortNet

    @functools.cache
    def network(size: int) -> Any:
        return DiffSortNet("bitonic", size, device=device, steepness=10.0)

    def rows(scores: Tensor) -> Tensor:
        """The rows of the items; the bitonic network needs a power of two of them."""
        n = scores.shape[-1]
        size = 1 << (n - 1).bit_length()
        padded = torch.nn.functional.pad(-scores, (0, size - n), value=1e3)  # sorts ascending
        return network(size)(padded)[1][:, :n, :n].mT

    relaxed = RelaxedMetric(metrics.get("ndcg"), plain.PlainPermutation(rows=rows))
    what = "bitonic DiffSortNet (another relaxation)"
    return {"neural_ndcg": torch_peer(what, relaxed, most=256, capturable=True)}


def sentence_transformers(device: str) -> Table:
    """Cross-encoder losses of sentence-transformers; its model is one that has the scores ready."""
    from sentence_transformers.cross_encoder import losses as theirs

    class Ready:
        """As much of a CrossEncoder as the losses ask for."""

        num_labels = 1

        def __init__(self, scores: Tensor) -> None:
            self.scores, self.device = scores, scores.device

        def preprocess(self, pairs: Any, **options: Any) -> dict[str, Tensor]:
            return {}

        def __call__(self, tokens: Any) -> dict[str, Tensor]:
            return {"scores": self.scores}

    def peer(what: str, kind: Any, **options: Any) -> Peer:
        def loss(scores: Tensor, labels: Tensor) -> Tensor:
            b, n = scores.shape
            found = kind(Ready(scores), mini_batch_size=-1, **options)
            return found([["query"] * b, [["document"] * n] * b], list(labels))

        return torch_peer(what, loss)

    second, rank = theirs.NDCGLoss2Scheme(), theirs.LambdaRankScheme()
    return {
        "lambdaloss": peer(
            "LambdaLoss, NDCGLoss2Scheme", theirs.LambdaLoss, weighting_scheme=second
        ),
        "lambdarank@10": peer(
            "LambdaLoss, LambdaRankScheme, k=10 (of both items)",
            theirs.LambdaLoss,
            weighting_scheme=rank,
            k=10,
        ),
        "ranknet": peer("RankNetLoss", theirs.RankNetLoss),
        "listmle": peer("ListMLELoss", theirs.ListMLELoss, respect_input_order=False),
        "listnet": peer("ListNetLoss", theirs.ListNetLoss),
    }


def written_out(device: str) -> Table:
    """The same losses as one would write them at first (`plain.py`).

    On a GPU only SmoothI's recursion, which no other library has.
    """
    names = PLAIN if device == "cpu" else ("smoothi_ndcg",)

    def peer(name: str) -> Peer:
        loss = plain.plain(losses.get(name))

        def there(scores: Tensor, labels: Tensor) -> Tensor:
            with scores.device:
                return loss(scores, labels)

        return torch_peer("n × n and autograd", there, most=1000, capturable=True)

    return {name: peer(name) for name in names}


LIBRARIES: dict[str, Callable[[str], Table]] = {
    "allRank": allrank,
    "rax": rax,
    "TF-Ranking": tf_ranking,
    "TF-Ranking, XLA": functools.partial(tf_ranking, xla=True),
    "PTRanking": ptranking,
    "torchsort": torchsort,
    "diffsort": diffsort,
    "sentence-transformers": sentence_transformers,
    "plain": written_out,
}
PACKAGES = {"TF-Ranking": "tensorflow-ranking", "TF-Ranking, XLA": "tensorflow-ranking"}


def load(names: list[str], device: str) -> tuple[dict[str, Table], dict[str, str], dict[str, str]]:
    """The tables of those that import, their versions, and why the others do not."""
    tables: dict[str, Table] = {}
    versions: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name in names:
        try:
            tables[name] = LIBRARIES[name](device)
        except Exception as error:  # whatever a foreign library raises on import
            absent[name] = f"{type(error).__name__}: {error}"
            continue
        if name != "plain":
            versions[name] = version(PACKAGES.get(name, name))
    return tables, versions, absent


def version(package: str) -> str:
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
