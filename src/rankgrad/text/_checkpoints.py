"""Hugging Face folders: loading them without pickle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def load_network(auto: Any, name_or_path: str | os.PathLike[str], **options: Any) -> Any:
    """A network whose weights are safetensors; others are pickles, which may run code.

    Args:
        auto: a class of transformers with ``from_pretrained``, such as ``AutoModel``.
        name_or_path: a Hugging Face folder, or a name on the hub.
        options: of ``from_pretrained``.

    Raises:
        FileNotFoundError: a path that is not there.
        ValueError: a folder has its weights as pickles only.
    """
    folder = check_there(name_or_path)
    if (
        folder.is_dir()
        and not any(folder.glob("*.safetensors"))
        and any(folder.glob("pytorch_model*.bin"))
    ):
        raise ValueError(
            f"{folder} has its weights as a pickle (.bin), which is never loaded: save the model "
            "with save_pretrained of a present transformers, which writes model.safetensors"
        )
    return auto.from_pretrained(os.fspath(name_or_path), use_safetensors=True, **options)


def check_there(name_or_path: str | os.PathLike[str]) -> Path:
    """The path of a name; an error if it looks like a folder that does not exist."""
    folder = Path(name_or_path)
    named = os.fspath(name_or_path)
    if (folder.is_absolute() or named.startswith((".", "~")) or named.count("/") > 1) and not (
        folder.is_dir()
    ):
        raise FileNotFoundError(f"there is no folder {named}")
    return folder
