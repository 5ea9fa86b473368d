"""BibTeX entries of the papers that losses come from, for model cards."""

from __future__ import annotations

from rankgrad.losses import Loss

__all__ = ["GRADIENT_CACHING", "citation"]

GRADIENT_CACHING = """\
@inproceedings{gao2021scaling,
  title = {Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup},
  author = {Gao, Luyu and Zhang, Yunyi and Han, Jiawei and Callan, Jamie},
  booktitle = {Proceedings of the 6th Workshop on Representation Learning for NLP},
  year = {2021}
}"""

_PAPERS = {  # by the beginning of a loss's name
    "neural_": """\
@inproceedings{pobrotyn2021neuralndcg,
  title = {NeuralNDCG: Direct Optimization of a Ranking Metric via Differentiable Relaxation of
           Sorting},
  author = {Pobrotyn, Przemys{\\l}aw and Bia{\\l}obrzeski, Rados{\\l}aw},
  booktitle = {SIGIR Workshop on eCommerce},
  year = {2021}
}""",
    "pirank_": """\
@inproceedings{swezey2021pirank,
  title = {PiRank: Scalable Learning To Rank via Differentiable Sorting},
  author = {Swezey, Robin and Grover, Aditya and Charron, Bruno and Ermon, Stefano},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2021}
}""",
    "smoothi_": """\
@inproceedings{thonet2022listwise,
  title = {Listwise Learning to Rank Based on Approximate Rank Indicators},
  author = {Thonet, Thibaut and Cinar, Yagmur Gizem and Gaussier, Eric and Li, Minghan and
            Renders, Jean-Michel},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  year = {2022}
}""",
    "approx_": """\
@article{qin2010general,
  title = {A General Approximation Framework for Direct Optimization of Information Retrieval
           Measures},
  author = {Qin, Tao and Liu, Tie-Yan and Li, Hang},
  journal = {Information Retrieval},
  year = {2010}
}""",
    "lambdaloss": """\
@inproceedings{wang2018lambdaloss,
  title = {The LambdaLoss Framework for Ranking Metric Optimization},
  author = {Wang, Xuanhui and Li, Cheng and Golbandi, Nadav and Bendersky, Michael and Najork,
            Marc},
  booktitle = {Proceedings of the 27th ACM International Conference on Information and Knowledge
               Management},
  year = {2018}
}""",
    "margin_mse": """\
@article{hofstatter2020improving,
  title = {Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge
           Distillation},
  author = {Hofst{\\"a}tter, Sebastian and Althammer, Sophia and Schr{\\"o}der, Michael and
            Sertkan, Mete and Hanbury, Allan},
  journal = {arXiv preprint arXiv:2010.02666},
  year = {2020}
}""",
}


def citation(*trained: Loss) -> str:
    """The entries to cite for losses trained with gradient caching.

    >>> "Hofst" in citation(losses.get("margin_mse"))
    True
    """
    names = [str(loss).removeprefix("gumbel_") for loss in trained]
    papers = [paper for name in names for start, paper in _PAPERS.items() if name.startswith(start)]
    return "\n\n".join(dict.fromkeys([*papers, GRADIENT_CACHING]))
