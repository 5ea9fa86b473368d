"""Tiny random Hugging Face models with word-level tokenizers, made without a download."""

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rankgrad.text import CausalScorer, EncoderScorer, Prompt

WORDS = [f"word{i}" for i in range(40)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>"]
PROMPT = Prompt(prefix="judge :", body="query {query} document {document}", suffix="answer :")
VOCABULARY = [*SPECIAL, "judge", ":", "query", "document", "answer", "yes", "no", *WORDS]


def texts(count: int, seed: int = 0, max_length: int = 12) -> list[str]:
    """Documents of 1 to ``max_length`` random words."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, max_length + 1, (count,), generator=random).tolist()
    return [
        " ".join(WORDS[i] for i in torch.randint(len(WORDS), (n,), generator=random).tolist())
        for n in lengths
    ]


def tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    """Words as tokens; ``[CLS] a [SEP] b [SEP]`` for pairs."""
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    named |= {"mask_token": "[MASK]", "eos_token": "</s>", "model_max_length": 32}
    named |= {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"], **options}
    return PreTrainedTokenizerFast(tokenizer_object=words, **named)


def bert(dropout: float = 0.1, **options: Any) -> BertForSequenceClassification:
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=1,
        initializer_range=0.3,  # scores differ
        **options,
    )
    return BertForSequenceClassification(config)


def encoder(kind: str, task: str = "ForSequenceClassification", **options: Any) -> PreTrainedModel:
    """An encoder of a class such as ``Roberta``, padding with token 1; without dropout."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "hidden_dropout_prob": 0.0, "type_vocab_size": 2}
    sizes |= {"attention_probs_dropout_prob": 0.0, "embedding_size": 16, "initializer_range": 0.3}
    if kind == "DistilBert":
        sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "initializer_range": 0.3}
        sizes |= {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(VOCABULARY),
        max_position_embeddings=34,
        pad_token_id=1,
        num_labels=1,
        attn_implementation=options.pop("attn_implementation", None),
        **sizes,
        **options,
    )
    return getattr(transformers, f"{kind}{task}")(config).eval()


def causal(kind: str = "qwen3", dropout: float = 0.1) -> LlamaForCausalLM | Qwen3ForCausalLM:
    torch.manual_seed(3)
    configs = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}
    config, model = configs[kind]
    return model(
        config(
            vocab_size=len(VOCABULARY),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=32,
            max_position_embeddings=64,
            attention_dropout=dropout,
            initializer_range=0.3,
            bos_token_id=2,
            eos_token_id=5,
        )
    )


def scorer(kind: str, dropout: float = 0.1) -> EncoderScorer | CausalScorer:
    """In training mode, so that dropout is on."""
    if kind == "encoder":
        made = EncoderScorer(bert(dropout), tokenizer())
    else:
        made = CausalScorer(causal(kind, dropout), tokenizer(model_max_length=64), prompt=PROMPT)
    return made.train()
