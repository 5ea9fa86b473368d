"""Text rankers: tokens, passages, heads, saving, and what is odd about inputs."""

import re

import numpy as np
import pytest
import tiny_models
import torch
from sentence_transformers import CrossEncoder
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertModel,
    PreTrainedTokenizerFast,
    XLNetConfig,
    XLNetForSequenceClassification,
)

import rankgrad.text
from rankgrad import _files
from rankgrad.text._reading import Reading
from rankgrad.text._text_ranker import TextRanker
from rankgrad.text._tokens import DOCUMENT, QUERY, Passages, length_limit, tokenize

# transformers compiles parts of DeBERTa-v2 so when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
QUERIES = ["word1 word2", "word3"] * 6
TEXTS = [*tiny_models.texts(11), ""]


def ranker(**reading):
    network = tiny_models.bert(dropout=0.0)
    if reading.get("head", "classifier") != "classifier":
        network = network.bert
    return TextRanker(network, tiny_models.tokenizer(), Reading(**reading)).eval()


@pytest.mark.parametrize("head", ["classifier", "similarity", "embedding"])
@pytest.mark.parametrize("passages", [1, 3])
def test_scores_do_not_depend_on_mini_batches_and_come_back_from_a_folder(head, passages, tmp_path):
    first = ranker(head=head, passages=passages, max_length=10)
    with torch.no_grad():
        for parameter in first.head_parameters():
            parameter.add_(0.1)
    pairs = list(zip(QUERIES, TEXTS, strict=True))
    scores = first.predict(pairs)
    alone = np.concatenate([first.predict([pair]) for pair in pairs])
    np.testing.assert_allclose(scores, alone, rtol=1e-5, atol=1e-6)
    inputs = first.tokenize(*zip(*pairs, strict=True))
    some = np.array([7, 0, 11, 3])
    np.testing.assert_allclose(first.score(inputs, some, batch_size=3), scores[some], rtol=1e-5)
    first.save(tmp_path / "saved")
    again = TextRanker.from_pretrained(tmp_path / "saved")
    assert again.reading.passages == passages
    np.testing.assert_allclose(again.predict(pairs), scores, rtol=1e-5, atol=1e-6)
    shorter = TextRanker.from_pretrained(tmp_path / "saved", Reading(max_length=9), trained=True)
    assert (shorter.reading.head, shorter.max_length) == (head, 9)
    other = "classifier" if head == "similarity" else "similarity"
    assert TextRanker.from_pretrained(tmp_path / "saved", Reading(head=other)).reading.head == other


def test_no_pairs_are_an_error():
    with pytest.raises(ValueError, match=r"needs one pair .* or more, found none"):
        ranker().predict(pair for pair in ())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": -1}, "batch_size must be a whole number of at least 1, found -1"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, found 0"),
        ({"precision": "bf16"}, "precision must be one of '32-true', 'bf16-mixed'; found 'bf16'"),
    ],
)
def test_options_of_scoring_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        ranker().predict([("word1", "word2")], **options)


def test_scoring_leaves_dropout_as_it_was():
    own = ranker().train()
    own.network.bert.eval()  # as of an encoder that is frozen
    before = [module.training for module in own.modules()]
    own.predict([("word1", "word2")])
    assert [module.training for module in own.modules()] == before


@pytest.mark.parametrize(
    "option", [{"passages": 0}, {"max_length": 0.5}, {"document_tokens": -1}], ids=str
)
def test_numbers_of_a_reading_are_checked(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} must be a whole number of at leas"):
        Reading(**option)


@pytest.mark.parametrize("head", ["classifier", "similarity", "embedding"])
def test_scores_of_half_precision_are_not_rounded_to_ties(head):
    own = ranker(head=head)
    pairs = [("word1", f"word2 {text}") for text in tiny_models.texts(300, seed=5)]
    exact = own.predict(pairs)
    half = own.predict(pairs, precision="bf16-mixed")
    assert len(np.unique(half)) > 0.95 * len(np.unique(exact))
    np.testing.assert_allclose(half, exact, atol=0.05 * np.ptp(exact))


def of_class(kind, task="ForSequenceClassification", options=None, **reading):
    tokenizer = tiny_models.tokenizer(
        pad_token="[UNK]", model_input_names=["input_ids", "attention_mask"]
    )
    network = tiny_models.encoder(kind, task, **(options or {}))
    return TextRanker(network, tokenizer, Reading(**reading)).eval()


CLASSES = ["Bert", "Roberta", "XLMRoberta", "Camembert", "Electra", "MPNet", "DebertaV2"]
CLASSES += ["DistilBert"]


@pytest.mark.parametrize("kind", CLASSES)
def test_the_head_over_passages_is_the_networks_own(kind):
    """One passage through the head over passages scores as through the network, also in bf16."""
    own = of_class(kind, passages=2)
    pairs = [*zip(QUERIES, TEXTS, strict=True)]
    encoded = own.tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted = own.network(**encoded).logits[:, 0].numpy()
    np.testing.assert_allclose(own.predict(pairs), wanted, rtol=1e-4, atol=1e-5)
    own.reading = Reading()
    np.testing.assert_allclose(own.predict(pairs), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [*CLASSES, "Albert", "ModernBert"])
def test_bf16_computes_the_same_function_with_a_head_in_float32(kind):
    own = of_class(kind)
    pairs = [("word1", text) for text in tiny_models.texts(40, seed=5)]
    exact, half = own.predict(pairs), own.predict(pairs, precision="bf16-mixed")
    np.testing.assert_allclose(half, exact, atol=0.1 * np.ptp(exact))
    rounded = torch.from_numpy(half).bfloat16().float().numpy()
    assert (half != rounded).mean() > 0.5
    if kind not in CLASSES:
        with pytest.raises(ValueError, match=f"not supported for {kind}For.*or passages=1"):
            of_class(kind, passages=2)


def test_cross_encoder_of_sentence_transformers_scores_alike(tmp_path):
    own = ranker(max_length=12)  # cuts the longer texts
    own.save(tmp_path / "saved")
    pairs = list(zip(QUERIES, TEXTS, strict=True))
    theirs = CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(pairs)
    np.testing.assert_allclose(own.predict(pairs), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", ["classifier", "similarity"])
def test_a_saved_folder_is_synced_and_every_file_of_it_has_a_checksum(head, tmp_path, monkeypatch):
    own, folder, synced = ranker(head=head), tmp_path / "saved", []
    extra = "vocab.txt"
    real = own.tokenizer.save_pretrained
    monkeypatch.setattr(
        own.tokenizer, "save_pretrained", lambda to: [real(to), (to / extra).write_text("word0")]
    )
    monkeypatch.setattr(
        _files, "sync", lambda path, sync=_files.sync: [synced.append(path), sync(path)]
    )
    own.save(folder)
    names = {path.name for path in folder.iterdir()} - {"rankgrad.json"}
    assert names <= {path.name for path in synced}
    assert set(_files.read_json(folder / "rankgrad.json")["files"]) == names
    assert extra in names
    config = _files.read_json(folder / "config.json")
    assert ("sentence_transformers" in config) == (head == "classifier")
    assert not hasattr(own.network.config, "sentence_transformers")
    (folder / extra).write_text("word1")
    with pytest.raises(ValueError, match=r"vocab\.txt is damaged"):
        TextRanker.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"passages": "two"}, "'reading.passages': should be a valid integer, found 'two'"),
        ({"passage": 2}, "'reading.passage'"),
        ({"head": "other"}, "'reading.head'"),
        (None, "'reading'"),
        ([], "it: should be a valid dictionary"),
    ],
)
def test_a_manifest_of_other_types_is_one_sentence(change, message, tmp_path):
    ranker().save(tmp_path / "saved")
    manifest = tmp_path / "saved" / "rankgrad.json"
    metadata = _files.read_json(manifest)
    if isinstance(change, list):
        manifest.write_text("[]")
    else:
        metadata["reading"] = change and metadata["reading"] | change
        _files.write_json(manifest, metadata, metadata["files"])
    with pytest.raises(ValueError, match=rf"rankgrad\.json is damaged \({message}"):
        TextRanker.from_pretrained(tmp_path / "saved")


def test_pickles_are_never_loaded(tmp_path):
    network = tiny_models.bert()
    network.config.save_pretrained(tmp_path)
    tiny_models.tokenizer().save_pretrained(tmp_path)
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    for load in (
        rankgrad.text.TextRanker.from_pretrained,
        rankgrad.text.EncoderScorer.from_pretrained,
        rankgrad.text.CausalScorer.from_pretrained,
    ):
        with pytest.raises(ValueError, match=r"has its weights as a pickle .* never loaded"):
            load(tmp_path)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_passages_pool_the_first_vectors(pooling):
    own = ranker(passages=2, max_length=10, pooling=pooling)
    words = tiny_models.WORDS[:10]
    query, text = "word30 word31", " ".join(words)  # 5 tokens of a document fit into an input
    inputs = own.tokenize([query], [text])
    assert inputs.pairs.tolist() == [0, 2]
    halves = [" ".join(words[:5]), " ".join(words[5:])]
    encoded = own.tokenizer([query] * 2, halves, return_tensors="pt")
    with torch.no_grad():
        vectors = own.network.bert(**encoded).last_hidden_state[:, 0]
        pooled = vectors.mean(0) if pooling == "mean" else vectors.amax(0)
        wanted = own.network.classifier(own.network.bert.pooler(pooled[None, None]))
    np.testing.assert_allclose(own.score(inputs), wanted[0].numpy(), rtol=1e-5)


def of_letters(kind):
    """A tokenizer whose words have a token for each letter; in bytes, for the space before, too."""
    special = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "[PAD]": 3}
    letters = "abcdefghij"
    if kind == "WordPiece":
        tokens = [*letters, *(f"##{letter}" for letter in letters)]
        model = models.WordPiece({**special, **{t: 4 + at for at, t in enumerate(tokens)}})
        made = Tokenizer(model)
        made.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        vocabulary = {**special, **{t: 4 + at for at, t in enumerate(["Ġ", *letters])}}
        made = Tokenizer(models.BPE(vocabulary, []))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", **names)


@pytest.mark.parametrize("kind", ["WordPiece", "bytes"])
def test_every_token_up_to_the_limit_is_in_a_passage(kind):
    tokenizer, random = of_letters(kind), np.random.default_rng(0)
    texts = [
        " ".join("".join(random.choice([*"abcdefghij"], n)) for n in random.integers(1, 8, count))
        for count in random.integers(1, 40, 200)
    ]
    texts += ["a" * 90, "ab  cd " * 9]  # a word that is longer than a passage, double spaces
    for number, text in enumerate(texts):
        most, limit = int(random.integers(2, 15)), [None, 33][number % 2]
        inputs = tokenize(
            tokenizer, ["abc"], [text], max_length=18, passages=Passages(most, limit)
        )  # 12 tokens of the document fit into an input
        assert len(inputs.offsets) - 1 <= most
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        found = inputs.ids[inputs.segments == DOCUMENT].tolist()
        read = min(12 * most, limit or 10**9)
        if kind == "WordPiece":  # the rest of a word that had to be cut begins like a word
            found, tokens = ([(t - 4) % 10 for t in own] for own in (found, tokens))
        assert found == tokens[: len(found)]
        if len(tokens) <= read:
            assert found == tokens
        else:  # parts end with a whole word, which has 8 tokens at most
            assert read - 8 * (len(inputs.offsets) - 1) < len(found) <= read


def test_passages_are_of_equal_length_and_end_at_the_limit():
    tokenizer = tiny_models.tokenizer()
    words = tiny_models.WORDS * 30
    text = " ".join(words[:900])
    encoding = tokenizer(text, add_special_tokens=False, verbose=False).encodings[0]
    parts = Passages(2, 800).split(text, encoding, 500)
    assert [len(part.split()) for part in parts] == [400, 400]  # the SmoothI paper's setting
    assert " ".join(parts).split() == words[:800]
    assert [len(p.split()) for p in Passages(3).split(text, encoding, 250)] == [250, 250, 250]
    short = tokenizer("word1", add_special_tokens=False).encodings[0]
    assert Passages(3).split("word1", short, 9) == ["word1"]


def test_passages_of_a_bi_encoder_do_not_depend_on_the_query():
    tokenizer, text = tiny_models.tokenizer(), " ".join(tiny_models.WORDS[:8])
    options = {"max_length": 10, "passages": Passages(2), "separate": True}
    for query in ("word1", "word1 word2 word3"):  # 8 tokens and two special ones fit into one input
        assert tokenize(tokenizer, [query], [text], **options).pairs.tolist() == [0, 1]
        assert tokenize(tokenizer, [query], [f"{text} word9"], **options).pairs.tolist() == [0, 2]


@pytest.mark.parametrize("head", ["classifier", "similarity", "embedding"])
def test_document_tokens_without_passages(head):
    text = "word1 word2 word3 word4"
    cut = ranker(head=head, document_tokens=2).tokenize(["word5"], [text])
    whole = ranker(head=head).tokenize(["word5"], ["word1 word2"])
    assert cut.ids.tolist() == whole.ids.tolist()
    inputs = ranker(head=head, document_tokens=9).tokenize(["word5"], [text])
    assert inputs.ids.tolist() == ranker(head=head).tokenize(["word5"], [text]).ids.tolist()


def test_document_tokens_of_a_prompt():
    network, tokenizer = tiny_models.causal(), tiny_models.tokenizer(model_max_length=64)
    cut = TextRanker(network, tokenizer, Reading(prompt=tiny_models.PROMPT, document_tokens=2))
    inputs = cut.tokenize(["word5"] * 2, ["word1 word2 word3", "word1 word2"])
    assert inputs.ids[: inputs.offsets[1]].tolist() == inputs.ids[inputs.offsets[1] :].tolist()


@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        *((kind, "sdpa") for kind in ("Bert", "Roberta", "DistilBert", "Electra")),
        *((kind, "eager") for kind in ("Bert", "Roberta", "DistilBert", "Electra", "MPNet")),
    ],
)
def test_embedding_head_is_the_cosine_of_embeddings_made_apart(kind, attention):
    own = of_class(kind, "Model", {"attn_implementation": attention}, head="embedding")
    query, text = QUERIES[0], TEXTS[0]
    with torch.no_grad():
        apart = [
            own.network(**own.tokenizer(t, return_tensors="pt")).last_hidden_state.mean(1)
            for t in (query, text)
        ]
    cosine = torch.cosine_similarity(*apart).item()
    pairs = list(zip(QUERIES, TEXTS, strict=True))
    assert own.predict(pairs)[0] == pytest.approx(20 * (cosine - 0.5), rel=1e-4)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_cross_attention_goes_from_a_bi_encoder_to_a_cross_encoder(attention, tmp_path):
    def scores(factor):
        options = {"attn_implementation": attention}
        own = of_class("Bert", "Model", options, head="embedding", cross_attention=factor)
        return own, own.predict(list(zip(QUERIES, TEXTS, strict=True)))

    apart, little, (joint, full) = scores(0.0)[1], scores(1e-4)[1], scores(1.0)
    np.testing.assert_allclose(little, apart, atol=0.02)
    assert np.abs(full - apart).max() > 0.1
    # At 1 it is the network's own attention over both texts, by positions from the start of each.
    query, text = (joint.tokenizer(t)["input_ids"] for t in (QUERIES[0], TEXTS[0]))
    with torch.no_grad():
        hidden = joint.network(
            input_ids=torch.tensor([query + text]),
            position_ids=torch.tensor([[*range(len(query)), *range(len(text))]]),
        ).last_hidden_state[0]
    vectors = (hidden[: len(query)].mean(0), hidden[len(query) :].mean(0))
    cosine = torch.cosine_similarity(*vectors, dim=0).item()
    assert full[0] == pytest.approx(20 * (cosine - 0.5), rel=1e-4)
    joint.save(tmp_path / "saved")
    assert TextRanker.from_pretrained(tmp_path / "saved").reading.cross_attention == 1.0


def test_cross_attention_is_checked():
    with pytest.raises(ValueError, match=r"cross_attention must be from 0 to 1, found 1\.5"):
        Reading(head="embedding", cross_attention=1.5)
    with pytest.raises(ValueError, match=r"cross_attention needs head='embedding', found .*classi"):
        Reading(head="classifier", cross_attention=0.1)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_causal_language_model_is_a_ranker(kind, tmp_path):
    network, tokenizer = tiny_models.causal(kind), tiny_models.tokenizer(model_max_length=64)
    own = TextRanker(network, tokenizer, Reading(prompt=tiny_models.PROMPT)).eval()
    assert own.reading.head == "causal"
    assert own.head_parameters() == []
    pairs = list(zip(QUERIES, TEXTS, strict=True))
    scores = own.predict(pairs)
    scorer = rankgrad.text.CausalScorer(network, tokenizer, prompt=tiny_models.PROMPT).eval()
    with torch.no_grad():
        wanted = [scorer(scorer.encode(query, [text])[0])[0] for query, text in pairs]
    np.testing.assert_allclose(scores, wanted, rtol=1e-4, atol=1e-5)
    half = own.predict(pairs, precision="bf16-mixed")
    assert len(np.unique(half)) == len(np.unique(scores))
    own.save(tmp_path / "saved")
    again = TextRanker.from_pretrained(tmp_path / "saved", trained=True)
    np.testing.assert_allclose(again.predict(pairs), scores, rtol=1e-5, atol=1e-6)
    # Also without our file it is recognized; the prompt must be given then.
    (tmp_path / "saved" / "rankgrad.json").unlink()
    asked = Reading(prompt=tiny_models.PROMPT)
    bare = TextRanker.from_pretrained(tmp_path / "saved", asked, trained=True)
    np.testing.assert_allclose(bare.predict(pairs), scores, rtol=1e-5, atol=1e-6)
    classifier = TextRanker.from_pretrained(tmp_path / "saved", Reading(head="classifier"))
    assert classifier.head_parameters()


def test_wrong_prompts_are_named(tmp_path):
    network, tokenizer = tiny_models.causal(), tiny_models.tokenizer(model_max_length=64)
    with pytest.raises(ValueError, match="passages are not supported for causal"):
        TextRanker(network, tokenizer, Reading(passages=2, prompt=tiny_models.PROMPT))
    with pytest.raises(ValueError, match="head='causal' needs a causal language model, found Bert"):
        ranker(head="causal")
    with pytest.raises(ValueError, match="a prompt is for causal language models, and not for Be"):
        ranker(prompt=tiny_models.PROMPT)
    with pytest.raises(ValueError, match="a prompt is for causal language models, found head"):
        Reading(head="similarity", prompt=tiny_models.PROMPT)
    with pytest.raises(ValueError, match=r"the body of a prompt must have \{query\} in it"):
        rankgrad.text.Prompt(body="{document}")
    for text, said in (
        ("body = 'a {query}'", "prompt.toml: the body of a prompt must have {document} in it"),
        ("boddy = 'a'", "there is no 'boddy' in a prompt"),
        ("yes = 1", "yes must be a text, found 1"),
        ("yes", "is not TOML"),
    ):
        (tmp_path / "prompt.toml").write_text(text)
        with pytest.raises(ValueError, match=re.escape(said)):
            rankgrad.text.Prompt.read(tmp_path / "prompt.toml")


def test_embedding_heads_that_would_be_wrong_are_refused():
    for kind, found in (("ModernBert", "type 'modernbert'"), ("DebertaV2", "type 'deberta-v2'")):
        with pytest.raises(ValueError, match=f"head='embedding' is not supported .* {found}"):
            of_class(kind, "Model", head="embedding")
    network = tiny_models.encoder("Bert", "Model")
    network.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="needs attn_implementation='sdpa' or 'eager'"):
        TextRanker(network, tiny_models.tokenizer(), Reading(head="embedding"))


def test_a_document_longer_than_the_limit_is_cut_as_if_it_ended_there():
    own = ranker()
    limit = own.max_length - 4  # [CLS] word1 [SEP] and [SEP]
    long = " ".join(tiny_models.WORDS * 3)
    cut = " ".join((tiny_models.WORDS * 3)[:limit])
    assert own.predict([("word1", long)])[0] == own.predict([("word1", cut)])[0]
    for wanted in (3, 33):
        with pytest.raises(ValueError, match=f"max_length must be from 5 to .* 32, found {wanted}"):
            ranker(max_length=wanted)


def test_models_without_a_limit_and_those_that_read_the_last_position():
    sizes = {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16, "num_labels": 1}
    config = XLNetConfig(vocab_size=len(tiny_models.VOCABULARY), **sizes)
    network, tokenizer = XLNetForSequenceClassification(config), tiny_models.tokenizer()
    with pytest.raises(ValueError, match="XLNetForSequenceClassification reads its last position"):
        TextRanker(network, tokenizer)
    assert length_limit(network, tokenizer, None) == 32  # the tokenizer's; the model says -1
    assert length_limit(network, tiny_models.tokenizer(model_max_length=int(1e30)), None) == 512


def test_an_empty_document_holds_the_query_alone():
    inputs = tokenize(tiny_models.tokenizer(), ["word1"], [""], max_length=10)
    assert inputs.segments.tolist() == [2, 0, 2, 2]
    for head in ("classifier", "similarity", "embedding"):
        assert np.isfinite(ranker(head=head, passages=2).predict([("word1", "")])).all()


def test_a_tokenizer_without_a_separator_joins_the_texts():
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(tiny_models.VOCABULARY)}))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bare = PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=32)
    assert bare.sep_token is None
    assert bare.pad_token is None
    own = TextRanker(tiny_models.bert(dropout=0.0), bare, Reading()).eval()
    inputs = own.tokenize(["word1"], ["word2 word3"])
    assert inputs.ids.tolist() == bare("word1 word2 word3")["input_ids"]
    assert inputs.segments.tolist() == [QUERY, DOCUMENT, DOCUMENT]
    scores = own.predict([("word1", "word2 word3"), ("word1", "word2"), ("word1", "")])
    assert scores[1] == pytest.approx(own.predict([("word1", "word2")])[0], rel=1e-5)


def test_a_head_of_its_own_is_what_the_encoder_has_not():
    own = ranker()
    names = {id(p): n for n, p in own.named_parameters()}
    found = {names[id(p)] for p in own.head_parameters()}
    assert found == {"network.classifier.weight", "network.classifier.bias"}
    assert isinstance(ranker(head="similarity").network, BertModel)
