"""The Hugging Face Hub: model cards, uploads and downloads of saved rankers.

A ranker on the Hub is the folder that ``Ranker.save`` writes, safetensors and JSON, with a model
card; trees are in their library's own text format. Nothing in it is executed when it is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankgrad.extras import load
from rankgrad.significance import intervals

if TYPE_CHECKING:
    from rankgrad.metrics import Evaluation

__all__ = ["CARD", "card", "download", "is_name", "upload"]

CARD = "README.md"
_PATTERNS = [
    *(CARD, "ranker.json", "best/model.json", "best/model.safetensors"),
    *("best/trees.txt", "best/trees.json"),  # of LightGBM and XGBoost
]
_TASK = "learning-to-rank"
_SHOWN = 50  # names of features in a card


def is_name(text: str) -> bool:
    """Whether a repository of the Hub can be called so; what cannot is a path.

    Args:
        text: a name or a path.

    Returns:
        Whether it is a name, with or without an owner.

    >>> is_name("me/ranker"), is_name("./ranker"), is_name("runs/first/ranker")
    (True, False, False)
    """
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", text) is not None


def card(
    metadata: Mapping[str, Any],
    *,
    evaluation: Evaluation | None = None,
    data: str | None = None,
    license: str | None = None,
    repo: str | None = None,
) -> str:
    """A model card in Markdown, with the metadata that the Hub reads.

    Args:
        metadata: of the ranker, by name: ``settings``, ``features`` (names, or their number),
            ``lists``, ``best_epoch`` and ``validation``, the metric and its value there, or None.
        evaluation: of the ranker on test data.
        data: what it was evaluated on, in words.
        license: an identifier such as ``"apache-2.0"``.
        repo: where it is on the Hub, for the example.

    Returns:
        The text of the card.
    """
    settings: Mapping[str, Any] = metadata["settings"]
    parts = [
        _metadata(evaluation, data, license, repo),
        f"# {'Ranker' if repo is None else repo.rpartition('/')[2]}",
        "A learning-to-rank model trained with [rankgrad](https://pypi.org/project/rankgrad): it "
        "scores the items of a list by their features, higher is better.",
        _summary_table(metadata),
        "## Use",
        _example(repo or "FOLDER"),
        "## Evaluation",
        _evaluated(metadata, evaluation, data),
        "## Settings",
        _table(("setting", "value"), [(k, f"`{v}`") for k, v in settings.items()]),
    ]
    return "\n\n".join(parts) + "\n"


def upload(
    folder: Path,
    repo: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    message: str = "Upload a ranker",
) -> str:
    """Upload a saved ranker; the repository is made if it is not there.

    Args:
        folder: of the ranker, as ``save_pretrained`` writes it.
        repo: its name on the Hub, such as ``me/ranker``.
        private: whether a new repository is private; None for the owner's default.
        token: of the Hub; None for the one that is saved on this machine.
        revision: the branch; None for the main one.
        create_pr: whether to open a pull request in place of a commit.
        message: of the commit.

    Returns:
        The address of the commit.

    Raises:
        ImportError: ``huggingface_hub`` is not installed; the message has the install line.
        ValueError: no repository can be called so.
    """
    if not is_name(repo):
        raise ValueError(
            f"repo_id must be a name on the Hub, such as 'me/ranker', found {repo!r}: "
            "save_pretrained writes a folder"
        )
    api = load("huggingface_hub", "hub").HfApi(token=token, library_name="rankgrad")
    repository = api.create_repo(repo, private=private, exist_ok=True)
    done = api.upload_folder(
        repo_id=repository.repo_id,
        folder_path=folder,
        allow_patterns=_PATTERNS,
        commit_message=message,
        revision=revision,
        create_pr=create_pr,
    )
    return str(done.pr_url if create_pr else done.commit_url)


def download(repo: str, **options: Any) -> Path:
    """The folder of a ranker of the Hub, out of the cache where it is there already.

    Args:
        repo: its name.
        options: of ``huggingface_hub.snapshot_download``, such as ``revision`` and ``token``.

    Returns:
        The folder.

    Raises:
        ImportError: ``huggingface_hub`` is not installed; the message has the install line.
    """
    fixed = {"allow_patterns": _PATTERNS, "library_name": "rankgrad"}
    return Path(load("huggingface_hub", "hub").snapshot_download(repo, **fixed, **options))


def _metadata(
    evaluation: Evaluation | None, data: str | None, license: str | None, repo: str | None
) -> str:
    """The YAML at the head of a card. JSON is YAML, so values are written as JSON."""
    lines = ["---", "library_name: rankgrad", f"tags: [{_TASK}, ranking, rankgrad]"]
    if license is not None:
        lines.append(f"license: {json.dumps(license)}")
    if evaluation is not None:
        name, where = json.dumps(repo or "ranker"), json.dumps(data or "test data")
        ends, lists = intervals(evaluation.per_list), evaluation.lists
        metrics = [
            {"type": spec, "name": spec, "value": value}
            | {"args": {"interval95": list(ends[spec]), "lists": lists}}
            for spec, value in evaluation.mean.items()
            if value == value  # undefined on all lists
        ]
        lines += [
            "model-index:",
            f"- name: {name}",
            "  results:",
            f"  - task: {{type: {_TASK}}}",
            f"    dataset: {{name: {where}, type: {where}}}",
            f"    metrics: {json.dumps(metrics)}",
        ]
    return "\n".join([*lines, "---"])


def _summary_table(metadata: Mapping[str, Any]) -> str:
    settings, features = metadata["settings"], metadata["features"]
    if not isinstance(features, int):
        shown = ", ".join(f"`{name}`" for name in features[:_SHOWN])
        features = f"{len(features)}: {shown}{', …' if len(features) > _SHOWN else ''}"
    rows = [
        ("loss", f"`{settings['loss']}`"),
        ("model", f"`{settings['model']}`"),
        ("features", features),
        ("transforms of features", ", ".join(f"`{t}`" for t in settings["transforms"]) or "none"),
        ("lists in training", metadata["lists"]),
        ("epoch" if "optimizer" in settings else "trees", metadata["best_epoch"]),
    ]
    return _table(("", ""), rows)


def _example(repo: str) -> str:
    return (
        "```python\n"
        "from rankgrad import Ranker\n\n"
        f"ranker = Ranker.from_pretrained({json.dumps(repo)})\n"
        "scores = ranker.predict(X, qid)  # [items, features] and the list of each item\n"
        "```"
    )


def _evaluated(metadata: Mapping[str, Any], evaluation: Evaluation | None, data: str | None) -> str:
    if evaluation is None:
        if metadata["validation"] is None:
            return "None was given: neither validation nor test data."
        metric, value = metadata["validation"]
        return (
            f"On the validation data, which chose the epoch, {metric} is {value:.4f}: expect less "
            "on other data. No evaluation on test data was given."
        )
    rows = []
    for spec, (low, high) in intervals(evaluation.per_list).items():
        rows.append((f"`{spec}`", f"{evaluation.mean[spec]:.4f}", f"{low:.4f} to {high:.4f}"))
    return "\n\n".join(
        [
            f"On {data or 'test data'}:",
            _table(("metric", "mean", "95% interval"), rows),
            "\n".join(f"- {line}" for line in evaluation.conventions),
            "Intervals are bootstrapped over the lists: they say how much a mean would move with "
            "other queries, not with another training seed.",
        ]
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
