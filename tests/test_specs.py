import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankgrad import losses
from rankgrad.specs import HasSpec, Registry, Spec

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("true", "false", "none", "inf")
)
numbers = st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.booleans() | st.none() | numbers | st.text(max_size=8) | names
specs = st.deferred(
    lambda: st.builds(
        Spec,
        names,
        st.none() | st.integers(1, 1000),
        st.dictionaries(names, values, max_size=3),
    )
)
values = st.deferred(
    lambda: scalars | st.lists(scalars, max_size=3) | specs.filter(lambda s: s.k or s.options)
)


@given(specs)
def test_what_is_written_is_read_back(spec):
    assert Spec.parse(str(spec)) == spec


@given(st.text(max_size=30))
def test_any_text_is_a_spec_or_a_clear_error(text):
    with contextlib.suppress(ValueError):
        Spec.parse(text)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("ndcg", Spec("ndcg")),
        (" ndcg @ 10 ", Spec("ndcg", 10)),
        ("a(x=1, y=0.5, z=1e-3)", Spec("a", None, {"x": 1, "y": 0.5, "z": 1e-3})),
        ("a(x=true,y=false,z=none,)", Spec("a", None, {"x": True, "y": False, "z": None})),
        (
            "a(x=\"two words\", y='it', z=bare)",
            Spec("a", None, {"x": "two words", "y": "it", "z": "bare"}),
        ),
        ("a(x=[1, 2.5, yes])", Spec("a", None, {"x": [1, 2.5, "yes"]})),
        ("a(x=b@3(y=1))", Spec("a", None, {"x": Spec("b", 3, {"y": 1})})),
        ("a(x=ndcg_loss2++)", Spec("a", None, {"x": "ndcg_loss2++"})),
        ("a(x=inf+, y=-inf)", Spec("a", None, {"x": "inf+", "y": -math.inf})),
    ],
)
def test_grammar(text, spec):
    assert Spec.parse(text) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a name at character 1, found the end"),
        ("ndcg@", "a whole number after @"),
        ("ndcg(", "expected option=value at character 6, found the end"),
        ("ndcg(k", "option=value"),
        ("ndcg(a=1", "',' or '\\)'"),
        ("ndcg(a=1, a=2)", "'a' is given twice"),
        ("ndcg) more", "expected the end at character 5"),
        ("ndcg(a=[1", "',' or ']'"),
    ],
)
def test_errors_say_where(text, message):
    with pytest.raises(ValueError, match=message):
        Spec.parse(text)


def test_a_cutoff_in_parentheses_is_an_error_that_says_where_it_goes():
    with pytest.raises(ValueError, match="write the cutoff as neural_ndcg@5, not as an option"):
        losses.get("neural_ndcg(k=5)")


def test_options_override_the_spec():
    assert str(losses.get("neural_ndcg@10(temperature=0.5)", k=5, temperature=2.0)) == (
        "neural_ndcg@5(temperature=2.0)"
    )
    with pytest.raises(ValueError, match="options go with a spec"):
        losses.get(losses.get("mse"), reduction="sum")


def test_a_name_is_registered_once():
    registry = Registry("thing")
    registry.register("one")(dict)
    with pytest.raises(ValueError, match="there is a thing named 'one' already"):
        registry.register("one")(dict)


def test_of_many_names_an_error_gives_the_near_ones_and_the_command_for_all():
    with pytest.raises(ValueError, match="unknown loss") as caught:
        losses.get("neurl_ndcg")
    assert str(caught.value) == (
        "unknown loss 'neurl_ndcg'. Did you mean 'neural_ndcg'? Also near: neural_dcg, "
        "gumbel_neural_ndcg, gumbel_neural_dcg. "
        f"`rankgrad losses` lists all {len(losses.names())}"
    )
    with pytest.raises(ValueError, match=r"'xyzzy'\. `rankgrad losses` lists all \d+$"):
        losses.get("xyzzy")


def test_of_few_names_an_error_gives_all():
    registry = Registry("box")
    for name in ("red", "blue"):
        registry.register(name)(dict)
    with pytest.raises(ValueError, match=r"unknown box 'green'\. There are: blue, red$"):
        registry.get("green")


@pytest.mark.parametrize("name", ["ndcg", "ndgc", "ndcg@10"])
def test_a_metric_in_place_of_a_loss_is_answered_by_its_losses(name):
    with pytest.raises(ValueError, match="Did you mean 'approx_ndcg' or 'neural_ndcg'\\?"):
        losses.get(name)


@pytest.mark.parametrize("name", ["softmax", "ranknet", "neural_ndcg", "gumbel_approx_ap@3"])
def test_none_is_a_word_where_an_option_takes_words(name):
    loss = losses.get(f"{name}(reduction=none)")
    assert loss.reduction == "none"
    assert losses.get(str(loss)) == loss
    assert losses.get("relaxed(through=none)").through is None


@pytest.mark.parametrize("text", ["ndcg@\u0663", "approx(alpha=\u0663)"])
def test_digits_of_other_scripts_are_no_numbers(text):
    with pytest.raises(ValueError, match="cannot read the spec"):
        Spec.parse(text)


def test_a_class_without_a_name_takes_that_of_its_registration():
    registry = Registry("shape")

    @registry.register("round", "circle")
    class Round(HasSpec):
        pass

    @registry.register("square")
    class Square(Round):
        name = "four sides"

    @registry.register("oval")
    class Oval(Round):
        pass

    names = [str(registry.get(spec)) for spec in ("circle", "square", "oval")]
    assert names == ["round", "four sides", "oval"]
