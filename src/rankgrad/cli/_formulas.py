"""Formulas for a terminal: LaTeX of ``reference.toml`` as Unicode text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_TOKENS = re.compile(r"\\[A-Za-z]+|\\.|\s+|.")

#: Commands without an argument. Others, such as ``\log``, are their own name.
_SYMBOLS = {
    "alpha": "α", "beta": "β", "delta": "δ", "Delta": "Δ", "varepsilon": "ε", "lambda": "λ",
    "mu": "μ", "sigma": "σ", "tau": "τ", "theta": "θ", "varphi": "φ", "sum": "Σ", "prod": "Π",
    "ge": "≥", "le": "≤", "ne": "≠", "in": "∈", "langle": "⟨", "rangle": "⟩", "lVert": "‖",
    "rVert": "‖", "cdot": "·", "left": "", "right": "", "quad": " ", ",": " ", ";": " ",
}  # fmt: skip

#: What a command makes of its arguments, by their number.
_ONE: dict[str, Callable[[str], str]] = {
    "hat": "{}\u0302".format,
    "widehat": "{}\u0302".format,
    "sqrt": "√({})".format,
    "mathcal": lambda text: text.replace("P", "𝒫"),
    **dict.fromkeys(("mathrm", "mathbb", "mathbf", "operatorname", "text"), str),
}
_TWO: dict[str, Callable[[str, str], str]] = {
    "frac": lambda above, below: _fraction(above, below),
    "tfrac": lambda above, below: _fraction(above, below),
    "underset": lambda below, name: f"{name}_{{{below}}}",
}


def plain_formula(latex: str) -> str:
    r"""A formula as Unicode text.

    Args:
        latex: with the commands that ``reference.toml`` uses.

    >>> plain_formula(r"-\frac{1}{n} \sum_{i \le k} \hat{P}_{ri} \log_2(1 + s_i)")
    '-(1/n) Σ_{i ≤ k} P̂_ri log_2(1 + s_i)'
    """
    text = " ".join(_text(iter(_TOKENS.findall(latex))).split())
    text = re.sub(r"(?<=[(\[⟨‖]) | (?=[)\],⟩‖])", "", text)
    return _without_double_parentheses(text)


def _text(tokens: Iterator[str]) -> str:
    """What the tokens up to a closing brace, or the end, say."""
    parts = []
    for token in tokens:
        if token == "}":
            break
        parts.append(_script(token, tokens) if token in "^_" else _convert(token, tokens))
    return "".join(parts)


def _convert(token: str, tokens: Iterator[str]) -> str:
    if token == "{":
        return _text(tokens)
    if not token.startswith("\\"):
        return token
    name = token[1:]
    if name in _ONE:
        return _ONE[name](_argument(tokens))
    if name in _TWO:
        return _TWO[name](_argument(tokens), _argument(tokens))
    return _SYMBOLS.get(name, name)


def _argument(tokens: Iterator[str]) -> str:
    return _convert(next(token for token in tokens if not token.isspace()), tokens)


def _script(mark: str, tokens: Iterator[str]) -> str:
    """An index or exponent, in braces if it is more than a word."""
    text = _argument(tokens)
    if mark + text == "^2":
        return "²"
    return mark + (text if re.fullmatch(r"[\w*]+|\(\w+\)", text) else f"{{{text}}}")


def _fraction(above: str, below: str) -> str:
    if re.fullmatch(r"\w+", above) and re.fullmatch(r"\w+", below):
        return f"({above}/{below})"
    return f"({_operand(above)} / {_operand(below, product=False)})"


def _operand(text: str, product: bool = True) -> str:
    """A side of a fraction, in parentheses unless it is one term."""
    outside = _outside_brackets(text)
    factor = " " not in outside.strip() and not re.match(r"\w\(", text)
    one = not re.search(r"[-+]|[ΣΠ]", outside) and (product or factor)
    return text if one else f"({text})"


def _outside_brackets(text: str) -> str:
    """The text with what is in brackets left out."""
    while (shorter := re.sub(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]|\|[^|]*\|", "", text)) != text:
        text = shorter
    return text


def _without_double_parentheses(text: str) -> str:
    """The text with one pair where two enclose the same, and none around all of it."""
    pairs, open_at = {}, []
    for index, character in enumerate(text):
        if character == "(":
            open_at.append(index)
        elif character == ")" and open_at:
            pairs[open_at.pop()] = index
    extra = {(i, j) for i, j in pairs.items() if pairs.get(i - 1) == j + 1}
    extra |= {(i, j) for i, j in pairs.items() if (i, j) == (0, len(text) - 1)}
    removed = {index for pair in extra for index in pair}
    return "".join(c for index, c in enumerate(text) if index not in removed)
