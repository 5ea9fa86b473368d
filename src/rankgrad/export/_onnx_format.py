"""to_onnx: a ranker as one ONNX graph, with raw features and a mask as inputs, scores as output.

``_exporting`` writes it as a file, and ``rankgrad.serving`` runs it.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rankgrad.data._dataset import names_of_features
from rankgrad.export._onnx_graph import OnnxGraph, Shape
from rankgrad.export._onnx_networks import add_input_scores, add_layers, add_members, add_network
from rankgrad.export._onnx_transforms import add_transform
from rankgrad.extras import load
from rankgrad.models.mlp import MLPNet
from rankgrad.models.tabm import TabMNet
from rankgrad.training import FittedRanker


def to_onnx(ranker: FittedRanker) -> bytes:
    """The ONNX file of a ranker.

    Its inputs are ``features``, float32 ``[lists, items, n_features]``, raw and in the order of
    training, and ``mask``, boolean ``[lists, items]``, True on real items; the mask may be left out
    if all items are real. Its output is ``scores``, float32 ``[lists, items]``, 0 on padding. Both
    axes are dynamic.

    Args:
        ranker: a ranker of networks or trees.

    Returns:
        The bytes of the file.

    Raises:
        NoFormError: a transform or the network has no ONNX form.
        ImportError: ``onnx`` is not installed; the message has the install line.

    >>> import onnxruntime
    >>> from rankgrad.export import to_onnx
    >>> from rankgrad.training import FittedRanker, Settings
    >>> features = np.random.default_rng(0).random((6, 2), dtype=np.float32)
    >>> ranker = FittedRanker.new(Settings(model="mlp(hidden=[4])"), features)
    >>> session = onnxruntime.InferenceSession(to_onnx(ranker))
    >>> (scores,) = session.run(["scores"], {"features": features[None]})
    >>> scores.shape, np.allclose(scores[0], ranker.predict(features), atol=1e-6)
    ((1, 6), True)
    """
    graph = OnnxGraph()
    shape = graph.add("Shape", "features", start=0, end=2)
    mask = graph.add("Expand", "mask", shape)  # the default of the input is one True, [1, 1]
    values = add_transform(ranker.transform, graph, "features")
    scores = add_network(ranker.network, graph, values, mask)
    masked_scores = graph.add("Where", mask, scores, 0.0)
    metadata = {
        "model": ranker.settings.model,
        "transforms": json.dumps(ranker.settings.transforms),
        "feature_names": json.dumps(names_of_features(ranker)),
        "categories": json.dumps(ranker.categories),  # features with categories are codes
        "per_item": json.dumps(ranker.per_item),
    }
    inputs: dict[str, Shape] = {
        "features": ["lists", "items", ranker.n_features],
        "mask": ["mask_lists", "mask_items"],
    }
    return graph.model(masked_scores, inputs, ["lists", "items"], metadata)


def layers_to_onnx(network: MLPNet | TabMNet, width: int) -> bytes:
    """The ONNX file of a network's layers alone, without transforms and in-list features.

    Args:
        network: the network.
        width: the number of inputs of the layers.

    Returns:
        A file with the input ``inputs`` ``[items, width]``, the output ``scores`` ``[items, 1]``.
        If the network has attention, the items are those of one list, and there is an input
        ``mask``, boolean ``[1, items]``.
    """
    graph = OnnxGraph()
    inputs: dict[str, Shape] = {"inputs": ["items", width]}
    if isinstance(network, MLPNet):
        scores = add_layers(network.layers, graph, "inputs")
    elif network.attention is None:
        scores = add_members(network, graph, "inputs")
    else:
        inputs["mask"] = ["lists", "mask_items"]
        one_list = graph.add("Unsqueeze", "inputs", np.array([0]))
        scores = add_input_scores(network, graph, one_list, "mask")
    return graph.model(graph.reshape(scores, -1, 1), inputs, ["items", 1], {})


def session(content: bytes, threads: int = 1, prepack: bool = True) -> Any:
    """An onnxruntime session of an ONNX file, on the CPU.

    Args:
        content: the content of the file.
        threads: the number of threads of onnxruntime.
        prepack: whether onnxruntime rearranges the constants of matrix products beforehand. Large
            products are faster with it; the product with a single column takes three times as long.
    """
    runtime = load("onnxruntime", "export")
    options = runtime.SessionOptions()
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def onnx_scores(content: bytes, features: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The scores ``[lists, items]`` that onnxruntime computes for padded lists.

    Args:
        content: the content of the file of :func:`to_onnx`.
        features: ``[lists, items, n_features]``.
        mask: ``[lists, items]``.
    """
    return np.asarray(session(content).run(["scores"], {"features": features, "mask": mask})[0])
