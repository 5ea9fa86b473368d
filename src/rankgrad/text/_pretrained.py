"""Load Hugging Face models for text rankers and scorers; never from pickles, which may run code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rankgrad.extras import load


def load_pretrained(
    auto_class: str, name_or_path: str | os.PathLike[str], **options: Any
) -> tuple[Any, Any, list[str]]:
    """Load a network, whose weights must be safetensors, and its tokenizer.

    Args:
        auto_class: the class of transformers that loads the network, such as ``"AutoModel"``.
        name_or_path: a Hugging Face folder, or a name on the hub.
        options: arguments of ``from_pretrained`` of that class.

    Returns:
        The network, its tokenizer, and the names of weights that the folder lacks, which are
        random.

    Raises:
        ImportError: transformers is not installed; the message has the install line.
        FileNotFoundError: ``name_or_path`` is a path that does not exist.
        ValueError: the folder has its weights as pickles only, or some of them have other shapes,
            such as those of a head with two outputs.
    """
    folder = check_exists(name_or_path)
    has_safetensors = any(folder.glob("*.safetensors"))
    if folder.is_dir() and not has_safetensors and any(folder.glob("pytorch_model*.bin")):
        raise ValueError(
            f"{folder} has its weights as a pickle (.bin), which is never loaded: save the model "
            "with save_pretrained of a current version of transformers, which writes "
            "model.safetensors"
        )
    transformers = load("transformers", "text")
    name = os.fspath(name_or_path)
    # Shapes are compared here, because the error below says more than that of transformers.
    options_of_load = {"ignore_mismatched_sizes": True, **options}
    network, loading = getattr(transformers, auto_class).from_pretrained(
        name, use_safetensors=True, output_loading_info=True, **options_of_load
    )
    if loading["mismatched_keys"] and not options.get("ignore_mismatched_sizes"):
        key, saved, expected = min(loading["mismatched_keys"])
        raise ValueError(
            f"{name} has {key} of shape {list(saved)}, and a ranker, which has one output, needs "
            f"{list(expected)}"
        )
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    return network, tokenizer, sorted(loading["missing_keys"])


def check_one_output(network: Any) -> None:
    """Raise if a network for classification has more than one output per pair."""
    if network.config.num_labels != 1:
        raise ValueError(f"the network must have num_labels=1, found {network.config.num_labels}")


def check_exists(name_or_path: str | os.PathLike[str]) -> Path:
    """``name_or_path`` as a path; an error if it cannot be a name on the hub and is no folder."""
    folder, name = Path(name_or_path), os.fspath(name_or_path)
    # Names on the hub are "model" or "organization/model".
    is_path = folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    if is_path and not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {name}")
    return folder
