"""Formulas for a terminal: LaTeX as Unicode text.

``rankgrad losses NAME`` prints the formulas of ``reference.toml`` with this; the documentation
renders the same LaTeX. Only the LaTeX commands that ``reference.toml`` uses are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

#: A LaTeX command such as ``\log`` or ``\,``, white space, or any other character.
_TOKENS = re.compile(r"\\[A-Za-z]+|\\.|\s+|.")

#: LaTeX commands without an argument. Those not listed, such as ``\log``, become their name.
_SYMBOLS = {
    "alpha": "α", "beta": "β", "delta": "δ", "Delta": "Δ", "varepsilon": "ε", "lambda": "λ",
    "mu": "μ", "sigma": "σ", "tau": "τ", "theta": "θ", "varphi": "φ", "sum": "Σ", "prod": "Π",
    "ge": "≥", "le": "≤", "ne": "≠", "in": "∈", "langle": "⟨", "rangle": "⟩", "lVert": "‖",
    "rVert": "‖", "cdot": "·", "left": "", "right": "", "quad": " ", ",": " ", ";": " ",
}  # fmt: skip

#: LaTeX commands with one argument, and the text they make of it.
_ONE_ARGUMENT: dict[str, Callable[[str], str]] = {
    "hat": "{}\N{COMBINING CIRCUMFLEX ACCENT}".format,
    "widehat": "{}\N{COMBINING CIRCUMFLEX ACCENT}".format,
    "sqrt": "√({})".format,
    "mathcal": lambda text: text.replace("P", "𝒫"),  # the only such letter in reference.toml
    **dict.fromkeys(("mathrm", "mathbb", "mathbf", "operatorname", "text"), str),
}


def plain_formula(latex: str) -> str:
    r"""A formula as Unicode text.

    Args:
        latex: the formula.

    >>> plain_formula(r"-\frac{1}{n} \sum_{i \le k} \hat{P}_{ri} \log_2(1 + s_i)")
    '-(1/n) Σ_{i ≤ k} P̂_ri log_2(1 + s_i)'
    """
    text = " ".join(_render(iter(_TOKENS.findall(latex))).split())
    # No spaces just inside brackets and norms, nor before commas.
    text = re.sub(r"(?<=[(\[⟨]) | (?=[)\],⟩])", "", text)
    text = re.sub(r"‖ ?(.*?) ?‖", r"‖\1‖", text)
    return _without_double_parentheses(text)


def _render(tokens: Iterator[str]) -> str:
    """The text of the tokens up to the end, or to the closing brace of this group."""
    parts = []
    for token in tokens:
        if token == "}":
            break
        parts.append(_script(token, tokens) if token in "^_" else _render_token(token, tokens))
    return "".join(parts)


def _render_token(token: str, tokens: Iterator[str]) -> str:
    """The text of a token and of its arguments, which are taken from the tokens after it."""
    if token == "{":
        return _render(tokens)
    if not token.startswith("\\"):
        return token
    name = token[1:]
    if name in _ONE_ARGUMENT:
        return _ONE_ARGUMENT[name](_argument(tokens))
    if name in ("frac", "tfrac"):
        return _fraction(_argument(tokens), _argument(tokens))
    if name == "underset":
        subscript, operator = _argument(tokens), _argument(tokens)
        return f"{operator}_{{{subscript}}}"
    return _SYMBOLS.get(name, name)


def _argument(tokens: Iterator[str]) -> str:
    """The text of a command's next argument: a token, or a group in braces."""
    return _render_token(next(token for token in tokens if not token.isspace()), tokens)


def _script(mark: str, tokens: Iterator[str]) -> str:
    """A subscript (``_``) or superscript (``^``), in braces unless it is one word."""
    text = _argument(tokens)
    if mark + text == "^2":
        return "²"
    return mark + (text if re.fullmatch(r"[\w*]+|\(\w+\)", text) else f"{{{text}}}")


def _fraction(numerator: str, denominator: str) -> str:
    """A fraction in parentheses: ``(1/n)``, or ``((a + b) / c)`` if a part is not one word.

    The parentheses keep products such as ``(1/n) Σ_i s_i`` unambiguous.
    """
    if re.fullmatch(r"\w+", numerator) and re.fullmatch(r"\w+", denominator):
        return f"({numerator}/{denominator})"
    if not _is_term(numerator):
        numerator = f"({numerator})"
    if not (_is_term(denominator) and _is_factor(denominator)):
        denominator = f"({denominator})"
    return f"({numerator} / {denominator})"


def _is_term(text: str) -> bool:
    """Whether a formula has none of the signs +, -, Σ and Π outside its brackets."""
    return not re.search(r"[-+ΣΠ]", _outside_brackets(text))


def _is_factor(text: str) -> bool:
    """Whether a term is a single factor, not a product such as ``a b`` or ``a(b + c)``.

    A name of several letters before a parenthesis, as in ``log(x)``, is a function: one factor.
    """
    return " " not in _outside_brackets(text).strip() and not re.match(r"\w\(", text)


def _outside_brackets(text: str) -> str:
    """The text without its brackets, bars ``|x|``, and what is in them."""
    while (shorter := re.sub(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]|\|[^|]*\|", "", text)) != text:
        text = shorter
    return text


def _without_double_parentheses(text: str) -> str:
    """Remove parentheses directly inside others, as in ``((x))``, and around the whole text."""
    closing: dict[int, int] = {}  # from the index of "(" to that of its ")"
    unclosed: list[int] = []
    for index, character in enumerate(text):
        if character == "(":
            unclosed.append(index)
        elif character == ")" and unclosed:
            closing[unclosed.pop()] = index
    removed: set[int] = set()
    for start, end in closing.items():
        if closing.get(start - 1) == end + 1 or (start, end) == (0, len(text) - 1):
            removed |= {start, end}
    return "".join(c for index, c in enumerate(text) if index not in removed)
