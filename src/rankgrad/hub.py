"""The Hugging Face Hub: model cards, uploads and downloads of saved rankers.

A ranker on the Hub is the folder that ``Ranker.save`` writes, safetensors and JSON, with a model
card; trees are in the text format of their library. Loading it executes no code.
:class:`rankgrad.Ranker` calls this module in ``save_pretrained``, ``push_to_hub`` and
``from_pretrained``.
"""

from __future__ import annotations

import json
import math
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
#: The files of a ranker; other files in its folder are neither uploaded nor downloaded.
_PATTERNS = [
    *(CARD, "ranker.json", "best/model.json", "best/model.safetensors"),
    *("best/trees.txt", "best/trees.json"),  # of LightGBM and XGBoost
]
_TASK = "learning-to-rank"
_MAX_NAMES = 50  # a card lists no more names of features than this


def is_name(text: str) -> bool:
    """Whether a text can be the name of a repository on the Hub; otherwise it is a path.

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
        metadata: about the ranker: ``settings``, ``custom`` (whether the model is a network of the
            user's own), ``features`` (their names, or their number), ``lists``, ``best_epoch`` and
            ``validation`` (the metric and its value, or None).
        evaluation: the evaluation on test data, if there is one.
        data: a description of the test data.
        license: an identifier such as ``"apache-2.0"``.
        repo: the name of the ranker on the Hub, for the example.

    Returns:
        The text of the card.
    """
    settings: Mapping[str, Any] = metadata["settings"]
    parts = [
        _yaml_header(evaluation, data, license, repo),
        f"# {'Ranker' if repo is None else repo.rpartition('/')[2]}",
        "A learning-to-rank model trained with [rankgrad](https://pypi.org/project/rankgrad): it "
        "scores the items of a list by their features, higher is better.",
        _summary_table(metadata),
        "## Use",
        _example(repo or "FOLDER", settings["model"] if metadata["custom"] else None),
        "## Evaluation",
        _results(metadata, evaluation, data),
        "## Settings",
        _table(("setting", "value"), [(name, f"`{value}`") for name, value in settings.items()]),
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
    """Upload a saved ranker; the repository is created if it does not exist.

    Args:
        folder: the ranker, as ``save_pretrained`` writes it.
        repo: its name on the Hub, such as ``me/ranker``.
        private: whether a new repository is private; None for the owner's default.
        token: the access token; None for the one that is saved on this machine.
        revision: the branch; None for the main one.
        create_pr: whether to open a pull request in place of a commit.
        message: the commit message.

    Returns:
        The URL of the commit, or of the pull request.

    Raises:
        ImportError: ``huggingface_hub`` is not installed; the message has the install line.
        ValueError: ``repo`` is not a valid name.
    """
    if not is_name(repo):
        raise ValueError(
            f"repo_id must be a name on the Hub, such as 'me/ranker', found {repo!r}: "
            "save_pretrained writes a folder"
        )
    api = load("huggingface_hub", "hub").HfApi(token=token, library_name="rankgrad")
    repository = api.create_repo(repo, private=private, exist_ok=True)
    commit = api.upload_folder(
        repo_id=repository.repo_id,
        folder_path=folder,
        allow_patterns=_PATTERNS,
        commit_message=message,
        revision=revision,
        create_pr=create_pr,
    )
    return str(commit.pr_url if create_pr else commit.commit_url)


def download(repo: str, **options: Any) -> Path:
    """Download a ranker from the Hub, unless it is in the cache.

    Args:
        repo: its name on the Hub.
        options: those of ``huggingface_hub.snapshot_download``, such as ``revision`` and ``token``.

    Returns:
        The folder.

    Raises:
        ImportError: ``huggingface_hub`` is not installed; the message has the install line.
    """
    hub = load("huggingface_hub", "hub")
    return Path(
        hub.snapshot_download(repo, allow_patterns=_PATTERNS, library_name="rankgrad", **options)
    )


def _yaml_header(
    evaluation: Evaluation | None, data: str | None, license: str | None, repo: str | None
) -> str:
    """The YAML at the head of a card. JSON is YAML, so values are written as JSON."""
    lines = ["---", "library_name: rankgrad", f"tags: [{_TASK}, ranking, rankgrad]"]
    if license is not None:
        lines.append(f"license: {json.dumps(license)}")
    if evaluation is not None:
        name, dataset = json.dumps(repo or "ranker"), json.dumps(data or "test data")
        interval_of, lists = intervals(evaluation.per_list), evaluation.lists
        metrics = [
            {"type": spec, "name": spec, "value": value}
            | {"args": {"interval95": list(interval_of[spec]), "lists": lists}}
            for spec, value in evaluation.mean.items()
            if not math.isnan(value)  # NaN: undefined on all lists
        ]
        lines += [
            "model-index:",
            f"- name: {name}",
            "  results:",
            f"  - task: {{type: {_TASK}}}",
            f"    dataset: {{name: {dataset}, type: {dataset}}}",
            f"    metrics: {json.dumps(metrics)}",
        ]
    return "\n".join([*lines, "---"])


def _summary_table(metadata: Mapping[str, Any]) -> str:
    settings, features = metadata["settings"], metadata["features"]
    if not isinstance(features, int):
        names = ", ".join(f"`{name}`" for name in features[:_MAX_NAMES])
        features = f"{len(features)}: {names}{', …' if len(features) > _MAX_NAMES else ''}"
    rows = [
        ("loss", f"`{settings['loss']}`"),
        ("model", f"`{settings['model']}`"),
        ("features", features),
        ("transforms of features", ", ".join(f"`{t}`" for t in settings["transforms"]) or "none"),
        ("lists in training", metadata["lists"]),
        ("epoch" if "optimizer" in settings else "trees", metadata["best_epoch"]),
    ]
    return _table(("", ""), rows)


def _example(repo: str, network: str | None) -> str:
    """Code that loads the ranker; ``network`` is the class of a network of the user's own."""
    model = "" if network is None else f", model={network}(...)"
    return (
        "```python\n"
        "from rankgrad import Ranker\n\n"
        f"ranker = Ranker.from_pretrained({json.dumps(repo)}{model})\n"
        "scores = ranker.predict(X, qid)  # [items, features] and the list of each item\n"
        "```"
    )


def _results(metadata: Mapping[str, Any], evaluation: Evaluation | None, data: str | None) -> str:
    """The section of the evaluation on test data or, without one, on validation data."""
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
        mean, interval = f"{evaluation.mean[spec]:.4f}", f"{low:.4f} to {high:.4f}"
        is_undefined = math.isnan(evaluation.mean[spec])
        rows.append((f"`{spec}`", *(("undefined", "-") if is_undefined else (mean, interval))))
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
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
