"""Specs: ``"neural_ndcg@10(temperature=0.5)"`` <-> object.

One grammar names every loss, metric, relaxation, model, transform and schedule::

    spec   = name ["@" k] ["(" [option "=" value {"," option "=" value}] ")"]
    value  = true | false | none | number | "text" | [value, ...] | spec

A value that is a bare word is text or, where an option takes an object, the spec of that object.
Each kind of object has one :class:`Registry`. ``str(object)`` is the spec again, with the options
that differ from their defaults.
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
_Parameters = Mapping[str, inspect.Parameter]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_+]*")
_NUMBER = re.compile(r"[+-]?((\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?|inf(?![\w+]))", re.ASCII)
_WHOLE = re.compile(r"-?\d+", re.ASCII)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'')
_MAX_DIGITS = 4000  # of a number: Python's own limit is a little higher
_MAX_DEPTH = 20  # levels of specs and lists within each other
_MAX_LISTED, _NEAREST = 40, 4  # an error lists up to 40 names; of more, the 4 nearest
_WORDS: dict[str, object] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Spec:
    """A parsed spec: a name, a cutoff and options.

    >>> Spec.parse("neural_ndcg@10(temperature=0.5)")
    Spec(name='neural_ndcg', k=10, options={'temperature': 0.5})
    >>> str(Spec.parse("ndcg@5( gain = linear )"))
    'ndcg@5(gain=linear)'

    Attributes:
        name: the name of the object in its registry.
        k: the cutoff; None without one.
        options: the values of the options by name; a value may be a spec itself.
    """

    name: str
    k: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Parse a spec.

        Args:
            text: the spec.

        Returns:
            The name, the cutoff and the options.

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
    parser, specs = _Parser(text), []
    while True:
        parser.move(parser.position)  # past white space
        start = parser.position
        parser.spec()
        specs.append(text[start : parser.position].strip())
        if not parser.skip(","):
            parser.end()
            return specs


def spec_of(thing: object, name: str, k: int | None = None) -> Spec:
    """The spec of an object: the arguments of its ``__init__`` that differ from their defaults.

    Args:
        thing: the object; its attributes have the names of the arguments.
        name: the name in the spec.
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
    """A base class of objects that specs name: ``str(object)`` is the spec, with a cutoff ``k``."""

    name: ClassVar[str]

    def __str__(self) -> str:
        return str(spec_of(self, self.name, getattr(self, "k", None)))


class Registry(Generic[_T]):
    """The names of one kind of object, such as losses, and the factory of each.

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
        self.base_class: type = object  # of all objects of this kind
        # Names that errors suggest first, among names with the same ending.
        self.preferred: tuple[str, ...] = ()
        self._factories: dict[str, Callable[..., _T]] = {}
        self._former: dict[str, str] = {}  # the present name by each earlier name
        self.also(lambda name: None, list)  # no further names

    def register(
        self, *names: str, former: Iterable[str] = ()
    ) -> Callable[[Callable[..., _T]], Any]:
        """A decorator that registers a class or function under one or more names.

        Args:
            names: the names; the first becomes the attribute ``name`` of a subclass of
                :class:`HasSpec` that does not define it.
            former: earlier names; they still work, and warn that the first of ``names`` replaces
                them.

        Returns:
            The decorator, which returns the class or function as it is.

        Raises:
            ValueError: from the decorator, if a name is not valid or is taken.
        """

        def decorate(factory: Callable[..., _T]) -> Callable[..., _T]:
            for name in names:
                if not _NAME.fullmatch(name):
                    raise ValueError(
                        f"a {self.kind} is named by letters, digits and _, found {quote(name)}"
                    )
                if name in self._factories or self._find_factory(name) is not None:
                    raise ValueError(f"there is a {self.kind} named {name!r} already")
                self._factories[name] = factory
            self._former.update(dict.fromkeys(former, names[0]))
            has_spec = isinstance(factory, type) and issubclass(factory, HasSpec)
            if has_spec and "name" not in vars(factory):
                factory.name = names[0]  # type: ignore[attr-defined]
            return factory

        return decorate

    def also(
        self, factory: Callable[[str], Callable[..., _T] | None], names: Callable[[], list[str]]
    ) -> None:
        """Add names that are not registered one by one, such as those of the grid of losses.

        Args:
            factory: gives the factory of a name; None for a name that it does not know.
            names: gives the list of all these names.
        """
        self._find_factory, self._list_names = factory, names

    @property
    def kinds(self) -> str:
        """The kind in the plural, which is also the command that lists the names."""
        return f"{self.kind}es" if self.kind.endswith("s") else f"{self.kind}s"

    def names(self) -> list[str]:
        """All names, sorted.

        Returns:
            The names, with those of :meth:`also`, without earlier ones.
        """
        return sorted([*self._factories, *self._list_names()])

    def factory(self, name: str) -> Callable[..., _T]:
        """The class or function that makes the object of this name.

        Args:
            name: a name of the registry, or an earlier one.

        Returns:
            The class or function.

        Raises:
            ValueError: the name is unknown; the message has the nearest names.
        """
        if name in self._former:
            name = renamed_value(name, self._former)
        factory = self._factories.get(name) or self._find_factory(name)
        if factory is None:
            hint = _suggest(name, self.names(), f"`rankgrad {self.kinds}`", self.preferred)
            raise ValueError(f"unknown {self.kind} {quote(name)}. {hint}")
        return factory

    def parse(self, text: str) -> Spec:
        """Parse a spec; a registry may override this to accept other names.

        Args:
            text: the spec.

        Returns:
            The name, the cutoff and the options.

        Raises:
            ValueError: the text does not fit the grammar.
        """
        return Spec.parse(text)

    def get(self, spec: str | Spec | _T, **options: Any) -> _T:
        """The object that a spec names.

        Args:
            spec: the spec, as text or parsed; an object is returned as it is.
            options: further options, which override those of the spec; ``k`` is the cutoff.

        Returns:
            The object.

        Raises:
            ValueError: the spec cannot be parsed, the name or an option is unknown, or a value is
                not valid; the message names what there is and the nearest match.
        """
        if not isinstance(spec, str | Spec):
            if not isinstance(spec, self.base_class):
                type_name = spec.__name__ if isinstance(spec, type) else type(spec).__name__
                raise ValueError(f"expected a {self.kind} or its spec, found {type_name}")
            if options:
                raise ValueError(
                    f"options go with a spec, not with an object: {', '.join(options)}"
                )
            return spec
        if isinstance(spec, str):
            spec = self.parse(spec)
        factory = self.factory(spec.name)
        parameters = options_of(factory)
        k = spec.k if "k" not in options else options.pop("k")
        if k is not None and not takes_cutoff(factory):
            raise ValueError(f"{spec.name} takes no cutoff, found {spec.name}@{k}")
        spec_options = _keep_none_words(spec.options, parameters)
        arguments = _resolve_aliases(factory, {**spec_options, **options})
        for option in arguments:
            if option == "k" and takes_cutoff(factory):
                cutoff = quote(arguments["k"])
                raise ValueError(f"write the cutoff as {spec.name}@{cutoff}, not as an option")
            if option not in parameters:
                hint = _suggest(option, parameters) or "It takes none"
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
        factory: the class or function that makes the object of a spec.

    Returns:
        Whether it does.
    """
    return "k" in inspect.signature(factory).parameters


def options_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a class or function by name: its public parameters without the cutoff.

    Args:
        factory: the class or function that makes the object of a spec.

    Returns:
        The parameters, with their defaults and types.
    """
    return {
        name: parameter
        for name, parameter in inspect.signature(factory).parameters.items()
        if name != "k" and not name.startswith("_")
    }


def _keep_none_words(options: Mapping[str, Any], parameters: _Parameters) -> dict[str, Any]:
    """The options of a spec, with ``"none"`` in place of None where an option takes words only.

    The parser reads the bare word ``none`` as None.
    """
    return {
        name: "none" if value is None and _takes_words_only(parameters.get(name)) else value
        for name, value in options.items()
    }


def _resolve_aliases(factory: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The values of options, by the options' own names in place of aliases.

    A class may have ``option_aliases``, which maps other names to its options, and
    ``settings_instead``, which maps names that are not options to the settings to use instead.
    """
    aliases: Mapping[str, str] = getattr(factory, "option_aliases", {})
    settings: Mapping[str, str] = getattr(factory, "settings_instead", {})
    resolved: dict[str, Any] = {}
    for option, value in options.items():
        if option in settings:
            raise ValueError(f"{option} is the setting {settings[option]} here, not an option")
        name = aliases.get(option, option)
        if name in resolved:
            raise ValueError(f"{name} is there twice: {option} is another name of it")
        resolved[name] = value
    return resolved


def _takes_words_only(option: inspect.Parameter | None) -> bool:
    """Whether an option's default is a text, and its type does not include None."""
    if option is None or not isinstance(option.default, str):
        return False
    return "None" not in str(option.annotation)


def _suggest(
    name: str, names: Iterable[str], command: str = "", preferred: Sequence[str] = ()
) -> str:
    """A hint for an unknown name: the nearest names, and all names or the command that lists them.

    Args:
        name: the unknown name.
        names: all names.
        command: the command that lists all names; the hint names it if they are too many to list.
        preferred: names to suggest before others with the same ending.
    """
    names = list(names)
    same_ending = _with_ending(name, names, preferred)
    close = same_ending or difflib.get_close_matches(name, names, n=_NEAREST)
    best = [match for match in same_ending if match in preferred] or close[:1]
    hint = f"Did you mean {' or '.join(map(repr, best))}? " if close else ""
    if len(names) <= _MAX_LISTED or not command:
        return f"{hint}There are: {listing(names, most=_MAX_LISTED)}" if names else ""
    rest = close[len(best) :]
    others = f"Also near: {', '.join(rest)}. " if rest else ""
    return f"{hint}{others}{command} lists all {len(names)}"


def _with_ending(name: str, names: Sequence[str], preferred: Sequence[str]) -> list[str]:
    """Names whose last word is near ``name``, such as approx_ndcg for ndcg; preferred names first.

    The result is empty if a whole name is nearer.
    """
    endings = {each.rpartition("_")[2] for each in names}
    near = difflib.get_close_matches(name, sorted(endings.union(names)), n=1)
    if not near or near[0] in names:
        return []
    matches = [each for each in names if each.rpartition("_")[2] == near[0]]
    matches.sort(key=lambda match: (match not in preferred, match.count("_"), match))
    return matches[:_NEAREST]


def _write(value: object) -> str:
    """A value as a spec has it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_write, value)) + "]"
    if isinstance(value, str):
        if _NAME.fullmatch(value) and value not in _WORDS and value != "inf":
            return value  # a bare word
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)


class _Parser:
    """A recursive descent parser of the grammar in the module's docstring.

    ``spec``, ``value``, ``cutoff``, ``options`` and ``items`` parse what they are named after at
    the position, and move past it and the white space after it.

    Attributes:
        text: the text to parse.
        position: the index of the next character.
        depth: how many values enclose the current position.
    """

    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0

    def spec(self) -> Spec:
        name = self.take(_NAME)
        if name is None:
            raise self.error("a name")
        k = self.cutoff() if self.skip("@") else None
        return Spec(name, k, self.options() if self.skip("(") else {})

    def value(self) -> Any:
        """Parse a value, and raise if it is nested too deeply."""
        if self.depth == _MAX_DEPTH:
            raise self.error(f"at most {_MAX_DEPTH} values within each other")
        self.depth += 1
        value = self.nested_value()
        self.depth -= 1
        return value

    def cutoff(self) -> int:
        digits = self.take(_WHOLE)
        if digits is None:
            raise self.error("a whole number after @")
        if len(digits) > _MAX_DIGITS:
            raise self.error(f"a cutoff of at most {_MAX_DIGITS} digits")
        return int(digits)

    def options(self) -> dict[str, Any]:
        """Parse ``option=value`` pairs after ``(``, up to and with ``)``."""
        options: dict[str, Any] = {}
        while not self.skip(")"):
            name = self.take(_NAME)
            if name is None or not self.skip("="):
                raise self.error("option=value")
            if name in options:
                raise self.error(f"each option once ({quote(name)} is given twice)")
            options[name] = self.value()
            if not self.skip(",") and not self.text.startswith(")", self.position):
                raise self.error("',' or ')'")
        return options

    def nested_value(self) -> Any:
        """Parse a value; :meth:`value` has checked the depth."""
        if self.skip("["):
            return self.items()
        text = _TEXT.match(self.text, self.position)
        if text:
            self.move(text.end())
            double_quoted, single_quoted = text.groups()  # escapes are in double quotes only
            if double_quoted is None:
                return single_quoted
            return re.sub(r"\\(.)", r"\1", double_quoted)
        number = self.take(_NUMBER)
        if number is not None:
            is_whole = re.fullmatch(r"[+-]?[\d_]+", number)
            try:
                return int(number) if is_whole else float(number)
            except ValueError:
                raise self.error(f"a number ({quote(number)} is none)") from None
        spec = self.spec()
        if spec.k is not None or spec.options:
            return spec
        # A bare word.
        return _WORDS.get(spec.name, spec.name)

    def items(self) -> list[Any]:
        """Parse the values of a list after ``[``, up to and with ``]``."""
        items: list[Any] = []
        while not self.skip("]"):
            items.append(self.value())
            if not self.skip(",") and not self.text.startswith("]", self.position):
                raise self.error("',' or ']'")
        return items

    def take(self, pattern: re.Pattern[str]) -> str | None:
        """Move past text that matches a pattern, and return it; None if it does not match."""
        self.move(self.position)
        match = pattern.match(self.text, self.position)
        if match is None:
            return None
        self.move(match.end())
        return match.group()

    def skip(self, character: str) -> bool:
        """Move past a character, if it is the next one, and return whether it was."""
        if not self.text.startswith(character, self.position):
            return False
        self.move(self.position + 1)
        return True

    def move(self, position: int) -> None:
        """Move to a position, and past the white space there."""
        while position < len(self.text) and self.text[position].isspace():
            position += 1
        self.position = position

    def end(self) -> None:
        """Raise if there is text left."""
        if self.position != len(self.text):
            raise self.error("the end")

    def error(self, expected: str) -> ValueError:
        """The error that says what was expected at the position."""
        rest = self.text[self.position :]
        return ValueError(
            f"cannot read the spec {quote(self.text)}: expected {expected} at character "
            f"{self.position + 1}, found {quote(rest) if rest else 'the end'}"
        )
