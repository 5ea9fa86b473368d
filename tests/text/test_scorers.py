"""Encoders and causal language models as scorers of pairs."""

import importlib
import sys
from dataclasses import replace

import pytest
import tiny_models
import torch
from tiny_models import PROMPT, bert, causal, scorer, texts, tokenizer
from transformers import BertForSequenceClassification

from rankgrad.text import CausalScorer, EncoderScorer, Prompt, TextRanker

QUERY = "word1 word2"


def scores(made, batches):
    with torch.no_grad():
        return torch.cat([made(batch) for batch in batches])


@pytest.mark.parametrize("kind", ["encoder", "qwen3", "llama"])
def test_a_document_scores_alike_in_any_mini_batch(kind):
    made, documents = scorer(kind).eval(), texts(9)
    batches = made.encode(QUERY, documents, batch_size=4)
    assert [len(batch["input_ids"]) for batch in batches] == [4, 4, 1]
    alone = [made.encode(QUERY, [document])[0] for document in documents]
    torch.testing.assert_close(scores(made, batches), scores(made, alone), rtol=1e-5, atol=1e-6)
    assert made.encode(QUERY, []) == []


def test_an_encoder_gives_its_logits():
    made = scorer("encoder").eval()
    (batch,) = made.encode(QUERY, ["word3", ""])
    assert batch["input_ids"].tolist() == [[2, 14, 15, 3, 16, 3], [2, 14, 15, 3, 3, 0]]
    torch.testing.assert_close(scores(made, [batch]), made.model(**batch).logits[:, 0].detach())


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_causal_model_gives_the_odds_of_yes(kind, side):
    made, documents = scorer(kind).eval(), texts(5)
    words = [f"{PROMPT.prefix} {PROMPT.pair(QUERY, text)} {PROMPT.suffix}" for text in documents]
    encoded = made.tokenizer(
        words, padding=True, padding_side=side, add_special_tokens=False, return_tensors="pt"
    )
    found = scores(made, [encoded])
    for text, score in zip(words, found, strict=True):
        tokens = made.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        answers = made.model(tokens).logits[0, -1].softmax(0)
        yes, no = (answers[made.tokenizer.convert_tokens_to_ids(word)] for word in ("yes", "no"))
        torch.testing.assert_close(score, (yes / no).log().detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scores(made, made.encode(QUERY, documents)), found)


@pytest.mark.parametrize("kind", ["encoder", "qwen3"])
def test_a_long_document_is_cut(kind):
    made = scorer(kind).eval()
    long = " ".join(["word5"] * 200)
    (batch,) = made.encode(QUERY, [long])
    assert batch["input_ids"].shape == (1, made.max_length)
    text = made.tokenizer.decode(batch["input_ids"][0])
    end = "[SEP]" if kind == "encoder" else PROMPT.suffix
    assert QUERY in text and text.endswith(end)
    assert scores(made, [batch]).isfinite().all()


def test_a_prompt_takes_texts_as_they_are():
    prompt = Prompt(body="{query} | {document}")
    assert prompt.pair("a {document}", "{query} b") == "a {document} | {query} b"


def test_tokenizers_without_separator_or_padding():
    plain = tokenizer(sep_token=None, pad_token=None)
    plain._tokenizer.post_processor = None
    made = EncoderScorer(bert(), plain).eval()
    (batch,) = made.encode("word1", ["word2", "word2 word3"])
    assert batch["input_ids"].tolist() == [[14, 15, 5], [14, 15, 16]]  # 5 is the end of text
    assert scores(made, [batch]).shape == (2,)
    with pytest.raises(ValueError, match="set its pad_token"):
        EncoderScorer(bert(), tokenizer(pad_token=None, eos_token=None))


def test_wrong_limits_and_answers_are_named():
    with pytest.raises(ValueError, match="from 5 to the model's limit 32, found 40"):
        EncoderScorer(bert(), tokenizer(), max_length=40)
    with pytest.raises(ValueError, match="from 5 to the model's limit 32, found 2"):
        EncoderScorer(bert(), tokenizer(), max_length=2)  # less than a pair's special tokens
    prompt = replace(PROMPT, prefix="judge : judge :")
    with pytest.raises(ValueError, match="max_length=6 leaves nothing"):
        CausalScorer(causal(), tokenizer(), prompt=prompt, max_length=6)
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"batch_size must be .* at least 1, found {size}"):
            scorer("encoder").encode(QUERY, texts(2), batch_size=size)
    with pytest.raises(ValueError, match="'very much' must be a single token"):
        CausalScorer(causal(), tokenizer(), prompt=Prompt(yes="very much"), max_length=32)


def test_a_network_of_two_outputs_is_refused(tmp_path):
    config = bert().config
    config.num_labels = 2
    network = BertForSequenceClassification(config)
    for kind in (EncoderScorer, TextRanker):
        with pytest.raises(ValueError, match="must have num_labels=1, found 2"):
            kind(network, tokenizer())
    network.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    for kind in (EncoderScorer, TextRanker):
        with pytest.raises(ValueError, match=r"classifier.bias of shape \[2\], .* needs \[1\]"):
            kind.from_pretrained(tmp_path)


def test_folders(tmp_path):
    made = scorer("encoder").eval()
    made.save_pretrained(tmp_path / "encoder")
    loaded = EncoderScorer.from_pretrained(tmp_path / "encoder").eval()
    batches = made.encode(QUERY, texts(5))
    torch.testing.assert_close(
        scores(loaded, loaded.encode(QUERY, texts(5))), scores(made, batches)
    )
    made = tiny_models.scorer("qwen3").eval()
    made.save_pretrained(tmp_path / "causal")
    loaded = CausalScorer.from_pretrained(tmp_path / "causal", prompt=PROMPT).eval()
    batches = made.encode(QUERY, texts(5))
    torch.testing.assert_close(
        scores(loaded, loaded.encode(QUERY, texts(5))), scores(made, batches)
    )


def test_without_transformers_the_install_line_is_printed(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for kind in (EncoderScorer, CausalScorer):
        with pytest.raises(ImportError, match=r'pip install "rankgrad\[text\]"'):
            kind.from_pretrained("bert-base-uncased")
    monkeypatch.delitem(sys.modules, "rankgrad.integrations.transformers", raising=False)
    with pytest.raises(ImportError, match=r'pip install "rankgrad\[text\]"'):
        importlib.import_module("rankgrad.integrations.transformers")


def test_limits_of_positions_that_start_after_padding_and_scores_of_half_precision():
    made = EncoderScorer(tiny_models.encoder("Roberta"), tokenizer(model_max_length=512))
    assert made.max_length == 34 - 2
    (batch,) = made.encode(QUERY, [" ".join(["word5"] * 200)])
    batch.pop("token_type_ids")
    assert scores(made, [batch]).isfinite().all()
    for kind in ("encoder", "qwen3"):
        made = scorer(kind).eval().bfloat16()
        found = scores(made, made.encode(QUERY, texts(20)))
        assert found.dtype == torch.float32
    assert (found != found.bfloat16()).any()  # a difference of two logits has more digits
