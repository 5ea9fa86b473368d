"""OnnxGraph: an ONNX graph that is built node by node.

Functions named ``add_...`` in this package take the names of tensors in a graph, add nodes, and
return the name of their output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankgrad.extras import load

#: The versions of operator sets and format in exported graphs: those of ONNX 1.13, which engines
#: since 2023 read.
OPSET, ML_OPSET, IR_VERSION = 18, 3, 8
#: Data types of ``TensorProto``, for ``Cast``.
FLOAT, INT32, INT64, BOOL, DOUBLE = 1, 6, 7, 9, 11

#: An input of a node: the name of a tensor, or a constant.
Operand = str | np.ndarray | float | int
#: The sizes of a tensor; a size that is a name is dynamic.
Shape = list[int | str]


class NoFormError(ValueError):
    """A ranker's transforms or network cannot be expressed in a format."""


class OnnxGraph:
    """The nodes and constants of a graph.

    >>> graph = OnnxGraph()
    >>> graph.add("Mul", "x", 2.0), [node.op_type for node in graph.nodes]
    ('Mul_1', ['Mul'])
    """

    def __init__(self) -> None:
        self._onnx = load("onnx", "export")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *operands: Operand, **attributes: Any) -> str:
        """Add a node with one output; return the name of the output.

        Args:
            operator: an operator of ONNX, such as ``MatMul``.
            operands: names of tensors; arrays, which become constants; or numbers, which
                become constants, float32 from a float and int64 from an int.
            attributes: attributes of the operator; ``domain="ai.onnx.ml"`` for operators of that
                domain.
        """
        return self.add_several(operator, 1, *operands, **attributes)[0]

    def add_several(
        self, operator: str, outputs: int, *operands: Operand, **attributes: Any
    ) -> list[str]:
        """Add a node; return the names of its outputs.

        Args:
            operator: as in :meth:`add`.
            outputs: the number of outputs.
            operands: as in :meth:`add`.
            attributes: as in :meth:`add`.
        """
        inputs = [value if isinstance(value, str) else self.constant(value) for value in operands]
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
        """A tensor in another shape; 0 keeps the size of an axis, -1 is inferred."""
        return self.add("Reshape", value, np.array(sizes, np.int64))

    def reshape_as(self, value: str, like: str) -> str:
        """A tensor in the shape of the tensor ``like``, whose axes may be empty."""
        return self.add("Reshape", value, self.add("Shape", like), allowzero=1)

    def model(
        self, score: str, inputs: dict[str, Shape], shape: Shape, metadata: dict[str, str]
    ) -> bytes:
        """The content of the ONNX file.

        An input ``mask`` is boolean; other inputs and the scores are float32. A caller may leave
        out the mask: its default, one True, is broadcast over all items.

        Args:
            score: the name of the tensor that becomes the output ``scores``.
            inputs: the shapes of the inputs by name. A size that is a name is dynamic.
            shape: the shape of the scores.
            metadata: the metadata of the file.
        """
        helper, types = self._onnx.helper, self._onnx.TensorProto

        def describe(name: str, sizes: Shape) -> Any:
            element_type = types.BOOL if name == "mask" else types.FLOAT
            return helper.make_tensor_value_info(name, element_type, sizes)

        if "mask" in inputs:  # in ONNX, a constant with the name of an input is its default
            self.constants.append(self._onnx.numpy_helper.from_array(np.ones((1, 1), bool), "mask"))
        self.nodes.append(helper.make_node("Identity", [score], ["scores"], "scores"))
        graph_inputs = [describe(name, sizes) for name, sizes in inputs.items()]
        graph_outputs = [describe("scores", shape)]
        graph = helper.make_graph(self.nodes, "ranker", graph_inputs, graph_outputs, self.constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        model = helper.make_model(
            graph, ir_version=IR_VERSION, producer_name="rankgrad", opset_imports=opsets
        )
        helper.set_model_props(model, metadata)
        self._onnx.checker.check_model(model)
        return bytes(model.SerializeToString())
