"""Hugging Face folders: loading them without pickle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rankgrad.extras import load


def load_pretrained(
    auto: str, name_or_path: str | os.PathLike[str], **options: Any
) -> tuple[Any, Any]:
    """A network whose weights are safetensors, and its tokenizer; pickles may run code.

    Args:
        auto: the class of transformers that loads the network, such as ``"AutoModel"``.
        name_or_path: a Hugging Face folder, or a name on the hub.
        options: of its ``from_pretrained``.

    Returns:
        What ``from_pretrained`` of the class gives, and the tokenizer.

    Raises:
        ImportError: transformers is not installed; the message has the install line.
        FileNotFoundError: a path that is not there.
        ValueError: a folder has its weights as pickles only.
    """
    folder = check_exists(name_or_path)
    if (
        folder.is_dir()
        and not any(folder.glob("*.safetensors"))
        and any(folder.glob("pytorch_model*.bin"))
    ):
        raise ValueError(
            f"{folder} has its weights as a pickle (.bin), which is never loaded: save the model "
            "with save_pretrained of a current version of transformers, which writes "
            "model.safetensors"
        )
    transformers, name = load("transformers", "text"), os.fspath(name_or_path)
    network = getattr(transformers, auto).from_pretrained(name, use_safetensors=True, **options)
    return network, transformers.AutoTokenizer.from_pretrained(name)


def check_exists(name_or_path: str | os.PathLike[str]) -> Path:
    """The path of a name; an error if it looks like a folder that does not exist."""
    folder = Path(name_or_path)
    named = os.fspath(name_or_path)
    if (folder.is_absolute() or named.startswith((".", "~")) or named.count("/") > 1) and not (
        folder.is_dir()
    ):
        raise FileNotFoundError(f"there is no folder {named}")
    return folder
