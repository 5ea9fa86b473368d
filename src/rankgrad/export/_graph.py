"""OnnxGraph: an ONNX graph that is built node by node."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankgrad.extras import load

#: The operator sets of exported graphs: those of ONNX 1.13, which engines of 2023 and later read.
OPSET, ML_OPSET, IR_VERSION = 18, 3, 8
#: Data types of ``TensorProto``, for ``Cast``.
FLOAT, INT32, INT64, BOOL, DOUBLE = 1, 6, 7, 9, 11

Operand = str | np.ndarray | float | int
Shape = list[int | str]


class NoFormError(ValueError):
    """A format has no form of a ranker's transforms or network."""


class OnnxGraph:
    """Nodes and constants of a graph.

    >>> graph = OnnxGraph()
    >>> graph.add("Mul", "x", 2.0), [node.op_type for node in graph.nodes]
    ('Mul_1', ['Mul'])
    """

    def __init__(self) -> None:
        self._onnx = load("onnx", "export")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *operands: Operand, **attributes: Any) -> str:
        """Add a node with one output; return its name.

        Args:
            operator: of ONNX, such as ``MatMul``.
            operands: names of other outputs; arrays, which become constants; or numbers, which
                become float32 constants where they are floats and int64 ones where not.
            attributes: of the operator. ``domain`` is ``ai.onnx.ml`` for its operators.
        """
        return self.add_several(operator, 1, *operands, **attributes)[0]

    def add_several(
        self, operator: str, outputs: int, *operands: Operand, **attributes: Any
    ) -> list[str]:
        """:meth:`add` with several outputs."""
        inputs = [each if isinstance(each, str) else self.constant(each) for each in operands]
        base = f"{operator}_{len(self.nodes) + 1}"
        names = [base if outputs == 1 else f"{base}_{i}" for i in range(outputs)]
        self.nodes.append(self._onnx.helper.make_node(operator, inputs, names, base, **attributes))
        return names

    def constant(self, values: np.ndarray | float | int) -> str:
        """Add a constant; return its name."""
        if isinstance(values, float):
            values = np.array(values, np.float32)
        name = f"constant_{len(self.constants) + 1}"
        array = np.ascontiguousarray(values) if np.ndim(values) else np.asarray(values)
        self.constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def reshape(self, value: str, *sizes: int) -> str:
        """A tensor in another shape; 0 keeps a size, -1 takes what is left."""
        return self.add("Reshape", value, np.array(sizes, np.int64))

    def reshape_as(self, value: str, like: str) -> str:
        """A tensor in the shape of another one, whose sizes may be 0."""
        return self.add("Reshape", value, self.add("Shape", like), allowzero=1)

    def model(
        self, score: str, inputs: dict[str, Shape], shape: Shape, metadata: dict[str, str]
    ) -> bytes:
        """The file. An input ``mask`` is boolean; others are float32, and so are the scores.

        The mask may be left out: its default, one True, is broadcast over all items.

        Args:
            score: the output that becomes ``scores``.
            inputs: their names and shapes, of which the sizes that are names are dynamic.
            shape: of the scores.
            metadata: what the file says of itself.
        """
        helper, types = self._onnx.helper, self._onnx.TensorProto

        def describe(name: str, shape: Shape) -> Any:
            kind = types.BOOL if name == "mask" else types.FLOAT
            return helper.make_tensor_value_info(name, kind, shape)

        if "mask" in inputs:
            default = self._onnx.numpy_helper.from_array(np.ones((1, 1), bool), "mask")
            self.constants.append(default)
        self.nodes.append(helper.make_node("Identity", [score], ["scores"], "scores"))
        graph_inputs = [describe(*each) for each in inputs.items()]
        graph_outputs = [describe("scores", shape)]
        graph = helper.make_graph(self.nodes, "ranker", graph_inputs, graph_outputs, self.constants)
        model = helper.make_model(
            graph,
            ir_version=IR_VERSION,
            producer_name="rankgrad",
            opset_imports=[
                helper.make_opsetid("", OPSET),
                helper.make_opsetid("ai.onnx.ml", ML_OPSET),
            ],
        )
        helper.set_model_props(model, metadata)
        self._onnx.checker.check_model(model)
        content: bytes = model.SerializeToString()
        return content
