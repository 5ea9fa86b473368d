"""Specs: ``"neural_ndcg@10(temperature=0.5)"`` <-> object.

One grammar names every loss, metric, relaxation and schedule::

    spec   = name ["@" k] ["(" [option "=" value {"," option "=" value}] ")"]
    value  = true | false | none | number | "text" | [value, ...] | spec

A value that is a bare word is text or, where an option takes an object, that object's spec. Each
kind of object has one :class:`Registry`; ``str(object)`` gives the spec back, naming only what
differs from the defaults.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from rankgrad._deprecation import renamed_value
from rankgrad._quoting import listing, quote

__all__ = ["HasSpec", "Registry", "Spec", "options_of", "spec_of", "split", "takes_cutoff"]

_T = TypeVar("_T")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_+]*")
_NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf\b)", re.ASCII)
_WHOLE = re.compile(r"-?\d+", re.ASCII)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'')
_DIGITS = 4000  # digits of a number, at most: Python reads no more
_DEEPEST = 20  # levels of specs and lists within each other, at most
_MANY, _FEW = 40, 4  # an error lists up to 40 names, or the 4 nearest of more
_WORDS: dict[str, object] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Spec:
    """A parsed spec: a name, a cutoff and options.

    >>> Spec.parse("neural_ndcg@10(temperature=0.5)")
    Spec(name='neural_ndcg', k=10, options={'temperature': 0.5})
    >>> str(Spec.parse("ndcg@5( gain = linear )"))
    'ndcg@5(gain=linear)'
    """

    name: str
    k: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Parse a spec.

        Raises:
            ValueError: the text does not fit the grammar; the message names the character.
        """
        parser = _Parser(text)
        spec = parser.spec()
        parser.end()
        return spec

    def __str__(self) -> str:
        cutoff = "" if self.k is None else f"@{self.k}"
        options = ", ".join(f"{name}={_write(value)}" for name, value in self.options.items())
        return f"{self.name}{cutoff}({options})" if options else f"{self.name}{cutoff}"


def split(text: str) -> list[str]:
    """Split a text at the commas between specs; commas within a spec stay.

    Args:
        text: specs with commas between them.

    Returns:
        The text of each spec.

    Raises:
        ValueError: the text is not a list of specs.

    >>> from rankgrad.specs import split
    >>> split("mse, neural_ndcg@10(temperature=0.5, sinkhorn=false), ranknet")
    ['mse', 'neural_ndcg@10(temperature=0.5, sinkhorn=false)', 'ranknet']
    """
    parser, found = _Parser(text), []
    while True:
        parser.move(parser.at)
        start = parser.at
        parser.spec()
        found.append(text[start : parser.at].strip())
        if not parser.skip(","):
            parser.end()
            return found


def spec_of(thing: object, name: str, k: int | None = None) -> Spec:
    """The spec of an object: the arguments of its ``__init__`` that differ from their defaults.

    Args:
        thing: its attributes have the names of the arguments.
        name: of the spec.
        k: the cutoff of the spec.

    Returns:
        The spec.
    """
    options = {}
    for parameter in options_of(type(thing)).values():
        value = getattr(thing, parameter.name)
        if value != parameter.default:
            options[parameter.name] = value
    return Spec(name, k, options)


class HasSpec:
    """A base class of what a spec names: ``str(object)`` is the spec."""

    name: ClassVar[str]

    def __str__(self) -> str:
        return str(spec_of(self, self.name))


class Registry(Generic[_T]):
    """The named objects of one kind, and how each is made.

    >>> shapes = Registry("shape")
    >>> @shapes.register("box")
    ... class Box:
    ...     def __init__(self, k=None, *, side=1.0):
    ...         self.k, self.side = k, side
    >>> shapes.get("box@2(side=3.5)").side
    3.5
    >>> shapes.get("bax")
    Traceback (most recent call last):
    ValueError: unknown shape 'bax'. Did you mean 'box'? There are: box
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.base_class: type = object  # what an object of this kind is an instance of
        # Among names with the same ending, errors name these first.
        self.preferred: tuple[str, ...] = ()
        self._factories: dict[str, Callable[..., _T]] = {}
        self._former: dict[str, str] = {}
        self.also(lambda name: None, list)

    def register(
        self, *names: str, former: Iterable[str] = ()
    ) -> Callable[[Callable[..., _T]], Any]:
        """A decorator that registers a class or function under one or more names.

        Args:
            names: of the objects it makes; the first is the ``name`` of a class that sets none.
            former: names that it had; they still work, and warn that the first of ``names``
                replaces them.
        """

        def enter(factory: Callable[..., _T]) -> Callable[..., _T]:
            for name in names:
                if not _NAME.fullmatch(name):
                    raise ValueError(
                        f"a {self.kind} is named by letters, digits and _, found {quote(name)}"
                    )
                if name in self._factories or self._further(name) is not None:
                    raise ValueError(f"there is a {self.kind} named {name!r} already")
                self._factories[name] = factory
            self._former.update(dict.fromkeys(former, names[0]))
            is_class = isinstance(factory, type) and issubclass(factory, HasSpec)
            if is_class and "name" not in vars(factory):
                factory.name = names[0]  # type: ignore[attr-defined]
            return factory

        return enter

    def also(
        self, factory: Callable[[str], Callable[..., _T] | None], names: Callable[[], list[str]]
    ) -> None:
        """Add objects by a function from a name to a factory or None, and one that lists names."""
        self._further, self._further_names = factory, names

    @property
    def kinds(self) -> str:
        """The kind in the plural, which is also the command that lists what there is."""
        return f"{self.kind}es" if self.kind.endswith("s") else f"{self.kind}s"

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted([*self._factories, *self._further_names()])

    def factory(self, name: str) -> Callable[..., _T]:
        """The class or function that makes the object of this name."""
        if name in self._former:
            name = renamed_value(name, self._former)
        found = self._factories.get(name) or self._further(name)
        if found is None:
            hint = _nearest(name, self.names(), f"`rankgrad {self.kinds}`", self.preferred)
            raise ValueError(f"unknown {self.kind} {quote(name)}. {hint}")
        return found

    def parse(self, text: str) -> Spec:
        """Parse a spec; a registry may override this to accept other names."""
        return Spec.parse(text)

    def get(self, spec: str | Spec | _T, **options: Any) -> _T:
        """The object that a spec names.

        Args:
            spec: the spec, as text or parsed; an object is returned as it is.
            options: override those of the spec, or add to them; ``k`` is the cutoff.

        Raises:
            ValueError: the spec cannot be parsed, the name or an option is unknown, or a value is
                not valid; the message names what there is and the nearest match.
        """
        if not isinstance(spec, str | Spec):
            if not isinstance(spec, self.base_class):
                found = spec.__name__ if isinstance(spec, type) else type(spec).__name__
                raise ValueError(f"expected a {self.kind} or its spec, found {found}")
            if options:
                raise ValueError(
                    f"options go with a spec, not with an object: {', '.join(options)}"
                )
            return spec
        if isinstance(spec, str):
            spec = self.parse(spec)
        factory = self.factory(spec.name)
        known = options_of(factory)
        k = spec.k if "k" not in options else options.pop("k")
        if k is not None and not takes_cutoff(factory):
            raise ValueError(f"{spec.name} takes no cutoff, found {spec.name}@{k}")
        arguments = _by_own_names(factory, {**_words(spec.options, known), **options})
        for option in arguments:
            if option not in known:
                hint = _nearest(option, known) or "It takes none"
                raise ValueError(f"{spec.name} has no option {quote(option)}. {hint}")
        if k is not None:
            arguments["k"] = k
        try:
            return factory(**arguments)
        except (TypeError, OverflowError) as error:
            raise ValueError(f"{spec.name}: {error}") from error


def takes_cutoff(factory: Callable[..., Any]) -> bool:
    """Whether a class or function takes a rank cutoff ``k``.

    Args:
        factory: what makes an object of a spec.

    Returns:
        Whether it does.
    """
    return "k" in inspect.signature(factory).parameters


def options_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a class or function by name: its public parameters but the cutoff.

    Args:
        factory: what makes an object of a spec.

    Returns:
        The parameters, with their defaults and types.
    """
    return {
        name: parameter
        for name, parameter in inspect.signature(factory).parameters.items()
        if name != "k" and not name.startswith("_")
    }


def _words(options: Mapping[str, Any], known: Mapping[str, inspect.Parameter]) -> Mapping[str, Any]:
    """The options of a spec; ``none`` is a word where an option takes words and not None."""
    return {
        name: "none" if value is None and name in known and _takes_word(known[name]) else value
        for name, value in options.items()
    }


def _by_own_names(factory: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Options by their own names; ``option_aliases`` of a class maps other names to them.

    ``settings_instead`` maps names that are no options to the settings that replace them.
    """
    aliases: Mapping[str, str] = getattr(factory, "option_aliases", {})
    elsewhere: Mapping[str, str] = getattr(factory, "settings_instead", {})
    found: dict[str, Any] = {}
    for option, value in options.items():
        if option in elsewhere:
            raise ValueError(f"{option} is the setting {elsewhere[option]} here, not an option")
        name = aliases.get(option, option)
        if name in found:
            raise ValueError(f"{name} is there twice: {option} is another name of it")
        found[name] = value
    return found


def _takes_word(option: inspect.Parameter) -> bool:
    return isinstance(option.default, str) and "None" not in str(option.annotation)


def _nearest(
    name: str, names: Iterable[str], command: str = "", preferred: Sequence[str] = ()
) -> str:
    """A hint for an unknown name: the nearest known one, and all or the command that lists all."""
    names = list(names)
    alike = _with_ending(name, names, preferred)
    close = alike or difflib.get_close_matches(name, names, n=_FEW)
    best = [each for each in alike if each in preferred] or close[:1]
    hint = f"Did you mean {' or '.join(map(repr, best))}? " if close else ""
    if len(names) <= _MANY or not command:
        return f"{hint}There are: {listing(names, most=_MANY)}" if names else ""
    rest = close[len(best) :]
    others = f"Also near: {', '.join(rest)}. " if rest else ""
    return f"{hint}{others}{command} lists all {len(names)}"


def _with_ending(name: str, names: Sequence[str], preferred: Sequence[str]) -> list[str]:
    """Names that end in this one after an underscore, as approx_ndcg ends in ``ndcg``.

    Those that end in one near it, too, if no whole name is nearer.
    """
    endings = {each.rpartition("_")[2] for each in names}
    near = difflib.get_close_matches(name, sorted(endings.union(names)), n=1)
    if not near or near[0] in names:
        return []
    found = [each for each in names if each.rpartition("_")[2] == near[0]]
    return sorted(found, key=lambda each: (each not in preferred, each.count("_"), each))[:_FEW]


def _write(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_write, value)) + "]"
    if isinstance(value, str):
        bare = _NAME.fullmatch(value) and value not in _WORDS and value != "inf"
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return value if bare else f'"{escaped}"'
    return str(value)


class _Parser:
    """Recursive descent over the grammar in the module's docstring."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

    def spec(self) -> Spec:
        name = self.take(_NAME)
        if name is None:
            raise self.error("a name")
        k = self.cutoff() if self.skip("@") else None
        return Spec(name, k, self.options() if self.skip("(") else {})

    def value(self) -> Any:
        """Parse a value; too deep nesting is an error."""
        if self.depth == _DEEPEST:
            raise self.error(f"at most {_DEEPEST} values within each other")
        self.depth += 1
        value = self.one_value()
        self.depth -= 1
        return value

    def cutoff(self) -> int:
        digits = self.take(_WHOLE)
        if digits is None:
            raise self.error("a whole number after @")
        if len(digits) > _DIGITS:
            raise self.error(f"a cutoff of at most {_DIGITS} digits")
        return int(digits)

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        while not self.skip(")"):
            name = self.take(_NAME)
            if name is None or not self.skip("="):
                raise self.error("option=value")
            if name in options:
                raise self.error(f"each option once ({quote(name)} is given twice)")
            options[name] = self.value()
            if not self.skip(",") and not self.text.startswith(")", self.at):
                raise self.error("',' or ')'")
        return options

    def one_value(self) -> Any:
        if self.skip("["):
            return self.items()
        text = _TEXT.match(self.text, self.at)
        if text:
            self.move(text.end())
            quoted, plain = text.groups()
            return re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
        number = self.take(_NUMBER)
        if number is not None:
            whole = re.fullmatch(r"[+-]?[\d_]+", number)
            try:
                return int(number) if whole else float(number)
            except ValueError:
                raise self.error(f"a number ({quote(number)} is none)") from None
        spec = self.spec()
        if spec.k is not None or spec.options:
            return spec
        return _WORDS.get(spec.name, spec.name)

    def items(self) -> list[Any]:
        items: list[Any] = []
        while not self.skip("]"):
            items.append(self.value())
            if not self.skip(",") and not self.text.startswith("]", self.at):
                raise self.error("',' or ']'")
        return items

    def take(self, pattern: re.Pattern[str]) -> str | None:
        self.move(self.at)
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        self.move(match.end())
        return match.group()

    def skip(self, character: str) -> bool:
        if not self.text.startswith(character, self.at):
            return False
        self.move(self.at + 1)
        return True

    def move(self, at: int) -> None:
        """Move to a position and skip the white space after it."""
        while at < len(self.text) and self.text[at].isspace():
            at += 1
        self.at = at

    def end(self) -> None:
        if self.at != len(self.text):
            raise self.error("the end")

    def error(self, wanted: str) -> ValueError:
        found = quote(self.text[self.at :]) if self.at < len(self.text) else "the end"
        return ValueError(
            f"cannot read the spec {quote(self.text)}: expected {wanted} at character "
            f"{self.at + 1}, found {found}"
        )
