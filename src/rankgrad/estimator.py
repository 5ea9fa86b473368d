"""Ranker: an estimator with scikit-learn's conventions on top of :mod:`rankgrad.training`.

It turns arrays with query ids or group sizes into a :class:`rankgrad.data.Dataset`, calls
:func:`rankgrad.training.fit`, and puts scores back into the order of the rows.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
from torch import nn
from typing_extensions import TypedDict

from rankgrad import _files, _schemas, hub
from rankgrad._quoting import quote, shorten
from rankgrad._shapes import Array
from rankgrad._validation import check_list_sizes
from rankgrad.data import Dataset
from rankgrad.data._categories import encode_frame, number_columns
from rankgrad.data._dataset import Categories, as_float32
from rankgrad.data._missing import MissingValues
from rankgrad.extras import requires
from rankgrad.metrics import Evaluation, Metric, evaluate, metrics
from rankgrad.training import FittedRanker, Settings
from rankgrad.training._fitting import fit_to_end
from rankgrad.training._settings import for_data
from rankgrad.training._tree_fitting import for_trees
from rankgrad.training.run import OnEpoch

with requires("train"):
    from sklearn.base import BaseEstimator
    from sklearn.utils import Tags, check_array, check_random_state, column_or_1d
    from sklearn.utils.validation import _check_sample_weight as check_sample_weight
    from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["Ranker"]


_MANIFEST, _MODEL = "ranker.json", "best"  # in the folder of a saved ranker
_FORMAT, _VERSION = "rankgrad ranker", 1  # as the manifest has them
#: What the folder of a saved ranker may contain; a folder with anything else is not replaced.
_SAVED_NAMES = {_MANIFEST, _MODEL, hub.CARD, ".gitattributes"}
_VALID = "valid_"  # and a number: the name of a pair of eval_set, as in LightGBM
_DEFAULTS = Settings()
#: Parameters that are not fields of :class:`Settings`. ``Ranker._settings`` derives ``seed`` from
#: ``random_state``, and ``holdout`` from ``early_stopping`` and ``validation_fraction``.
_NOT_SETTINGS = {"early_stopping", "validation_fraction", "random_state", "verbose"}
#: Parameters that may be None: ``fit`` chooses them, or they have the default of ``Settings``.
_LEFT_OPEN = (
    *("loss", "model", "optimizer", "learning_rate", "weight_decay", "schedule", "epochs"),
    *("batching", "batch_size", "accumulate", "metrics"),
)
#: Fitted attributes that are saved as they are, without the ``_`` at their end.
_ATTRIBUTES = ("n_lists", "longest_list", "best_iteration", "best_score", "n_iter")
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_MAX_ROWS_WITHOUT_QID = 2000  # more rows than that are hardly one list
#: How scikit-learn's ``validate_data`` checks ``X``.
_CHECKS: Any = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan"}
_MISSING = {"None", "nan", "<NA>", "NaT"}  # missing values as Python, NumPy and pandas print them


class _Manifest(TypedDict):
    """The contents of ``ranker.json`` besides its format and version.

    ``tuples`` has the names of parameters that are tuples, which JSON stores as lists. Earlier
    versions did not write the fields that are not required.
    """

    parameters: dict[str, Any]
    tuples: NotRequired[list[str]]
    feature_names: list[str]
    n_lists: NotRequired[int]
    longest_list: NotRequired[int]
    best_iteration: int | None
    best_score: Any
    n_iter: int
    evals_result: dict[str, dict[str, list[Any]]]


@dataclass(eq=False, repr=False)
class Ranker(BaseEstimator):  # type: ignore[misc]
    """A neural ranker for arrays, data frames and sparse matrices.

    Rows are items, and rows of the same ``qid`` are one list; they may stand in any order. Without
    ``qid`` and ``group`` all rows are one list, up to 2,000 of them.

    What is None, such as model, loss, optimizer and schedule, ``fit`` chooses by the training data
    (``verbose`` prints how) or takes the default of its setting; what is given stays, and with
    ``model="small"`` all has the defaults of settings. The parameters are those of
    :class:`rankgrad.training.Settings`, with three exceptions. In place of ``holdout`` and
    ``seed`` there are scikit-learn's ``early_stopping``, ``validation_fraction`` and
    ``random_state``. There is no ``tensorboard``, which logs in a run folder, since ``fit`` writes
    none: pass ``rankgrad.training.TensorBoard(folder="logs")`` to ``fit`` as ``on_epoch``.

    Args:
        model: a spec; a ``torch.nn.Module`` that maps features ``[..., n, f]`` and a mask to
            scores, of which each fit trains a copy; or None.
        early_stopping: without an ``eval_set``, hold lists out of the training data: their metric
            chooses the best epoch, and training stops after ``patience`` epochs without a better
            one. With ``patience="auto"`` all epochs of a schedule that ``fit`` chooses are trained.
        validation_fraction: the fraction of the lists that is held out, drawn by ``random_state``.
        random_state: seed of everything random: a whole number, a generator of NumPy, or None for
            a new seed each time.
        verbose: show progress.

    Attributes:
        model_: the trained :class:`~rankgrad.training.FittedRanker`, of the best epoch.
        evals_result_: ``{"training": {"loss": [...]}, "valid_0": {"ndcg@10": [...], ...}}``, a
            value per epoch, NaN where a metric is undefined on all lists; ``valid_1`` and so on
            where ``eval_set`` was a list of several.
        best_iteration_: the best epoch, counted from 1, by the metric on the last pair of
            ``eval_set`` or on the lists held out; the last epoch where there were neither.
        best_score_: the metric after that epoch; None where there were neither.
        n_lists_: the number of lists of the training data.
        longest_list_: how many items the longest of them has.
        n_features_in_: the number of features.
        feature_names_in_: their names, where ``X`` was a data frame.

    >>> from rankgrad.estimator import Ranker
    >>> random = np.random.default_rng(0)
    >>> X, qid = random.normal(size=(200, 5)), random.integers(0, 20, 200)
    >>> y = (X[:, 0] > 0.5).astype(int)
    >>> ranker = Ranker("softmax", epochs=30, learning_rate=0.01).fit(X, y, qid=qid)
    >>> ranker.predict(X, qid).shape, ranker.score(X, y, qid=qid) > 0.8
    ((200,), True)

    scikit-learn's searches hand ``qid`` on to ``fit`` and ``score`` where metadata routing says so:

    >>> import sklearn
    >>> from sklearn.model_selection import GridSearchCV, GroupKFold
    >>> with sklearn.config_context(enable_metadata_routing=True):  # or set_config, for good
    ...     ranker = Ranker("softmax").set_fit_request(qid=True).set_score_request(qid=True)
    ...     search = GridSearchCV(ranker, {"epochs": [1, 3]}, cv=GroupKFold(2))
    ...     search = search.fit(X, y, qid=qid, groups=qid)
    >>> list(search.best_params_)
    ['epochs']
    """

    loss: str | None = None
    model: str | nn.Module | None = None
    metric: str = _DEFAULTS.metric
    _: KW_ONLY
    metrics: Sequence[str] | None = None
    transforms: Sequence[str] = _DEFAULTS.transforms
    missing: Sequence[str] = _DEFAULTS.missing
    categorical: Sequence[str] = _DEFAULTS.categorical
    list_size: int | None = _DEFAULTS.list_size
    optimizer: str | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    schedule: str | None = None
    epochs: int | None = None
    patience: int | str | None = _DEFAULTS.patience
    batching: str | None = None
    batch_size: int | None = None
    documents: int = _DEFAULTS.documents
    clip: float | None = _DEFAULTS.clip
    average: float | None = _DEFAULTS.average
    accumulate: int | None = None
    precision: str = _DEFAULTS.precision
    device: str = _DEFAULTS.device
    devices: int = _DEFAULTS.devices
    graphs: bool = _DEFAULTS.graphs
    memory: int | None = _DEFAULTS.memory
    early_stopping: bool = False
    validation_fraction: float = 0.1
    random_state: Any = 0
    verbose: bool = False

    def fit(
        self,
        X: Any,
        y: Any,
        qid: Any = None,
        *,
        group: Any = None,
        sample_weight: Any = None,
        eval_set: Any = None,
        eval_qid: Any = None,
        eval_group: Any = None,
        on_epoch: OnEpoch | Sequence[OnEpoch] | None = None,
    ) -> Ranker:
        """Train on lists.

        Args:
            X: ``[N, F]`` features: an array, a data frame or a sparse matrix. NaN is a missing
                value, and columns of pandas' dtype ``category`` are categorical, as in LightGBM.
            y: ``[N]`` labels, at least 0; higher is more relevant.
            qid: ``[N]`` the list of each row, numbers or texts, in any order. This or ``group`` is
                needed above 2,000 rows.
            group: instead, the sizes of the lists, which then stand one after the other.
            sample_weight: ``[N]`` weights of items, on their gain or loss term.
            eval_set: ``(X, y)``, or a list or tuple of such pairs. The last one chooses the best
                epoch and stops training, as in XGBoost; all are in ``evals_result_``.
            eval_qid: the ``qid`` of the rows of ``eval_set``; a list with one for each pair, if
                ``eval_set`` is a list. This or ``eval_group`` is needed where there are several
                lists to train on.
            eval_group: instead, the ``group`` of ``eval_set``; ``[len(y)]`` for a single list.
            on_epoch: called with the values of each epoch, such as a logger
                (:class:`rankgrad.training.TensorBoard`); or several.

        Returns:
            The ranker itself, fitted.

        Raises:
            ValueError: a parameter is not valid, a label or a weight is negative, the arrays do not
                fit together, or there are more than 2,000 rows without ``qid`` and ``group``.
            KeyboardInterrupt: Ctrl-C was pressed; the ranker is then as before.
        """
        X, categories = encode_frame(X, categorical=self.categorical)
        X, y = validate_data(self, X, y, y_numeric=True, ensure_min_samples=2, **_CHECKS)
        weights = None
        if sample_weight is not None:
            weights = check_sample_weight(sample_weight, X, ensure_non_negative=True)
        if qid is None and group is None and len(y) > _MAX_ROWS_WITHOUT_QID:
            raise ValueError(
                f"X has {len(y)} rows, and fit was given neither qid nor group, which would make "
                f"them one list: pass qid= with the query of each row (or group=[{len(y)}] if they "
                "are one list)"
            )
        train = self._dataset(X, y, qid, group, categories, weights)
        eval_data = self._eval_datasets(eval_set, eval_qid, eval_group, len(train) > 1, categories)
        others = {f"{_VALID}{number}": dataset for number, dataset in enumerate(eval_data)}
        vali = others.popitem()[1] if others else None  # the last one chooses the best epoch
        if vali is None and self.early_stopping:
            self._check_holdout(len(train))
        network = deepcopy(self.model) if isinstance(self.model, nn.Module) else None
        settings, notes = for_data(self._settings(), train, self._explicit())
        if self.verbose and notes:
            print(*notes, sep="\n")
        result = fit_to_end(
            settings,
            train,
            vali,
            others=others,
            network=network,
            on_epoch=on_epoch,
            quiet=not self.verbose,
        )
        self.model_ = result.model
        self.n_lists_, self.longest_list_ = len(train), int(train.lengths.max())
        self.best_iteration_ = result.best_epoch
        self.best_score_ = result.best_value
        self.n_iter_ = len(result.history)
        n_evaluated = max(len(eval_data), int(result.settings.holdout > 0))
        self.evals_result_ = _evals_result(result.history, result.settings, n_evaluated)
        return self

    def predict(self, X: Any, qid: Any = None, *, group: Any = None) -> Array:
        """The scores ``[N]`` of items, in the order of the rows; higher is better.

        Args:
            X: ``[N, F]`` features.
            qid: ``[N]`` the list of each row. Models that look at whole lists, as the default one
                does, need it. Without it they take the rows as one list, with a warning, or raise
                if there are more rows than the longest list of the training data has. Models that
                score each item by itself, such as ``mlp``, do not use it.
            group: instead, the sizes of the lists.

        Returns:
            ``[N]`` scores, float32.

        Raises:
            ValueError: ``X`` does not have the features of the training data, ``qid`` or ``group``
                does not fit its rows, or both are missing and the rows cannot be one list.
        """
        if not self._passes_checks(X):
            check_is_fitted(self)
            X, _ = encode_frame(X, self.model_.categories or (None,) * self.n_features_in_)
            X = validate_data(self, X, reset=False, **_CHECKS)
        if qid is None and group is None:
            self._check_one_list(X.shape[0])
        features = self._features(X, self.model_.categories, self.model_.settings.missing)
        if _is_one_list(len(features), qid, group):
            return self.model_.predict(features)
        order, offsets = _group_rows(len(features), qid, group)
        scores = self.model_.predict(features[order], offsets)
        in_order_of_rows = np.empty_like(scores)
        in_order_of_rows[order] = scores
        return in_order_of_rows

    def score(
        self, X: Any, y: Any, qid: Any = None, *, group: Any = None, sample_weight: Any = None
    ) -> float:
        """The mean of the metric over the lists; its negative where lower is better.

        Args:
            X: as in :meth:`fit`.
            y: as in :meth:`fit`.
            qid: as in :meth:`fit`; this or ``group`` is needed where there were several lists.
            group: as in :meth:`fit`; ``[len(y)]`` for a single list.
            sample_weight: weights of items, on their gain.

        Returns:
            The value; higher is better, as scikit-learn expects.

        Raises:
            ValueError: as in :meth:`evaluate`.
        """
        metric = metrics.get(self.metric)
        evaluation = self.evaluate(
            X, y, qid, group=group, sample_weight=sample_weight, metrics=[metric]
        )
        return -evaluation[metric] if metric.lower_is_better else evaluation[metric]

    def evaluate(
        self,
        X: Any,
        y: Any,
        qid: Any = None,
        *,
        group: Any = None,
        sample_weight: Any = None,
        metrics: str | Metric | Sequence[str | Metric] | None = None,
    ) -> Evaluation:
        """Several metrics over the lists, with the values of each list.

        Args:
            X: as in :meth:`fit`.
            y: as in :meth:`fit`.
            qid: as in :meth:`score`.
            group: as in :meth:`score`.
            sample_weight: weights of items, on their gain.
            metrics: their specs; None for the ranker's ``metric`` and ``metrics``.

        Returns:
            The mean of each metric, by its spec, and its value on each list.

        Raises:
            ValueError: the arrays do not fit together, or the ranker was fitted on several lists
                and neither ``qid`` nor ``group`` is given.
        """
        check_is_fitted(self)
        if qid is None and group is None and self.n_lists_ > 1:
            raise ValueError(
                f"the ranker was fitted on {self.n_lists_} lists, and neither qid nor group is "
                "given: pass qid= (or group=[len(y)] if the rows are one list). In "
                "GridSearchCV, use set_score_request(qid=True) with "
                "sklearn.set_config(enable_metadata_routing=True)"
            )
        scores = self.predict(X, qid, group=group)
        labels = _labels(y, len(scores))
        order, offsets = _group_rows(len(scores), qid, group)
        weights = None
        if sample_weight is not None:
            weights = check_sample_weight(sample_weight, scores, ensure_non_negative=True)
            weights = weights[order]
        return evaluate(
            scores[order],
            labels[order],
            offsets=offsets,
            weights=weights,
            metrics=self.model_.settings.logged if metrics is None else metrics,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ranker as a folder. A saved ranker is replaced; anything else is an error.

        ``rankgrad predict`` and ``rankgrad evaluate`` take the folder too.

        Args:
            path: the folder.

        Raises:
            FileExistsError: there is something other than a saved ranker at the path.
        """
        with self._atomic_folder(Path(path)) as folder:
            self._write(folder)

    def save_pretrained(
        self,
        path: str | os.PathLike[str],
        *,
        evaluation: Evaluation | None = None,
        data: str | None = None,
        license: str | None = None,
        repo_id: str | None = None,
    ) -> None:
        """:meth:`save` with a model card, as rankers have on the Hugging Face Hub.

        Args:
            path: the folder.
            evaluation: on test data, as :meth:`evaluate` gives it: the card has the metrics, their
                conventions and their confidence intervals.
            data: a description of the test data, such as ``"MQ2008, Fold 1, test"``.
            license: the license of the model, an identifier such as ``"apache-2.0"``.
            repo_id: the name that it will have on the Hub, for the card.

        Raises:
            FileExistsError: there is something other than a saved ranker at the path.
        """
        with self._atomic_folder(Path(path)) as folder:
            self._write(folder)
            text = hub.card(
                self._card(), evaluation=evaluation, data=data, license=license, repo=repo_id
            )
            _files.write(folder / hub.CARD, text)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        evaluation: Evaluation | None = None,
        data: str | None = None,
        license: str | None = None,
        private: bool | None = None,
        token: str | None = None,
        **options: Any,
    ) -> str:
        """Upload the ranker with a model card to the Hugging Face Hub.

        Args:
            repo_id: ``"user/name"``; the repository is created if it does not exist.
            evaluation: as in :meth:`save_pretrained`.
            data: as in :meth:`save_pretrained`.
            license: as in :meth:`save_pretrained`.
            private: whether a new repository is private.
            token: an access token; None for the one you logged in with.
            **options: ``revision``, ``create_pr`` and ``message`` of the commit.

        Returns:
            The URL of the commit, or of the pull request.

        Raises:
            ImportError: ``huggingface_hub`` is not installed; the message has the install line.
            ValueError: ``repo_id`` is a path, not the name of a repository.
        """
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, "ranker")
            self.save_pretrained(
                folder, evaluation=evaluation, data=data, license=license, repo_id=repo_id
            )
            return hub.upload(folder, repo_id, private=private, token=token, **options)

    @classmethod
    def from_pretrained(
        cls, repo_id: str | os.PathLike[str], *, model: nn.Module | None = None, **options: Any
    ) -> Ranker:
        """Load a ranker from a folder or from the Hugging Face Hub. No code in it is run.

        Args:
            repo_id: a folder that :meth:`save_pretrained` wrote, or ``"user/name"`` on the Hub.
            model: a network of the same class and sizes, if the ranker was fitted with a network
                in place of a spec.
            **options: options of the download: ``revision``, ``token``, ``cache_dir`` and
                ``local_files_only``.

        Returns:
            The fitted ranker.

        Raises:
            FileNotFoundError: there is no saved ranker at a path.
            ImportError: ``huggingface_hub`` is not installed; the message has the install line.
        """
        if isinstance(repo_id, os.PathLike) or Path(repo_id).exists() or not hub.is_name(repo_id):
            return cls.load(repo_id, model)
        return cls.load(hub.download(os.fspath(repo_id), **options), model)

    def _card(self) -> dict[str, Any]:
        """The metadata for :func:`rankgrad.hub.card`."""
        settings = self.model_.settings
        names = getattr(self, "feature_names_in_", None)
        score = self.best_score_
        own = {"model": type(self.model_.network).__name__} if self.model_.custom else {}
        return {
            "settings": settings.applicable() | own,
            "custom": self.model_.custom,
            "features": self.n_features_in_ if names is None else names.tolist(),
            "lists": self.n_lists_,
            "best_epoch": self.best_iteration_,
            "validation": None if score is None else (settings.metric, score),
        }

    def _atomic_folder(self, path: Path) -> AbstractContextManager[Path]:
        """A folder to fill, which replaces a saved ranker; raise if the path is anything else."""
        check_is_fitted(self)
        _files.check_folder_replaceable(path, _SAVED_NAMES, "a saved Ranker")
        return _files.atomic_folder(path)

    def _write(self, folder: Path) -> None:
        """Write the ranker into a folder."""
        parameters = self.get_params(deep=False)
        if isinstance(self.model, nn.Module):
            parameters["model"] = None
        if not isinstance(self.random_state, numbers.Integral):
            parameters["random_state"] = None
        manifest = {
            "format": _FORMAT,
            "version": _VERSION,
            "parameters": parameters,
            "tuples": [name for name, value in parameters.items() if isinstance(value, tuple)],
            "feature_names": getattr(self, "feature_names_in_", np.empty(0, object)).tolist(),
            **{name: getattr(self, f"{name}_") for name in _ATTRIBUTES},
            "evals_result": _map_values(
                self.evals_result_, lambda value: None if math.isnan(value) else value
            ),
        }
        values = json.loads(json.dumps(manifest, default=_to_python))
        (folder / _MODEL).mkdir()
        self.model_.write(folder / _MODEL)
        _files.write_json(folder / _MANIFEST, values)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module | None = None) -> Ranker:
        """Read what :meth:`save` wrote.

        Args:
            path: the folder.
            model: a network of the same class and sizes, if the ranker was fitted with a network
                in place of a spec.

        Returns:
            The fitted ranker.

        Raises:
            FileNotFoundError: there is no saved ranker at the path.
            ValueError: a file is damaged, or the ranker was fitted with a network and ``model`` is
                missing or of other sizes.
        """
        path = Path(path)
        if not (path / _MANIFEST).is_file():
            raise FileNotFoundError(f"there is no saved Ranker at {path}")
        remedy = "fit it again"
        saved = _schemas.read_versioned(path / _MANIFEST, _Manifest, _FORMAT, _VERSION, remedy)
        parameters = saved["parameters"]
        for name in saved.get("tuples", ()):  # JSON stores them as lists
            if not isinstance(parameters.get(name), list):
                raise _files.damaged(path / _MANIFEST, f"{quote(name)} is not a list")
            parameters[name] = tuple(parameters[name])
        if model is not None:
            parameters["model"] = model
        try:
            ranker = cls(**parameters)
        except TypeError as error:
            raise _files.damaged(path / _MANIFEST, shorten(str(error))) from None
        ranker.model_ = FittedRanker.load(path / _MODEL, deepcopy(model))
        ranker.n_features_in_ = ranker.model_.n_features
        if saved["feature_names"]:
            ranker.feature_names_in_ = np.array(saved["feature_names"], dtype=object)
            # Earlier versions wrote the names into ranker.json alone.
            ranker.model_.feature_names = tuple(saved["feature_names"])
        saved = {"n_lists": 1, "longest_list": 0} | saved  # earlier versions did not write these
        for name in _ATTRIBUTES:
            setattr(ranker, f"{name}_", saved[name])
        ranker.evals_result_ = _map_values(
            saved["evals_result"], lambda value: math.nan if value is None else value
        )
        return ranker

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def _explicit(self) -> set[str]:
        """Of the parameters that ``for_data`` may choose, those that the user has set."""
        found = {name for name in _LEFT_OPEN if getattr(self, name) is not None}
        return found if self.patience == _DEFAULTS.patience else {*found, "patience"}

    def _check_holdout(self, lists: int) -> None:
        """Raise if no lists can be held out of this number of training lists."""
        fraction = self.validation_fraction
        if not isinstance(fraction, numbers.Real) or not 0 < fraction < 1:
            raise ValueError(
                f"validation_fraction must lie between 0 and 1, found {quote(fraction)}"
            )
        if lists < 2:
            raise ValueError(
                "there is one list to train on, and none to hold out: set early_stopping=False, or "
                "pass an eval_set"
            )

    def _settings(self) -> Settings:
        """The settings of a training with these parameters."""
        parameters = self.get_params(deep=False).items()
        values = {name: value for name, value in parameters if name not in _NOT_SETTINGS}
        values = {k: v for k, v in values.items() if k not in _LEFT_OPEN or v is not None}
        if isinstance(self.model, nn.Module):
            del values["model"]
        seed = self.random_state
        if isinstance(seed, np.random.Generator):
            seed = seed.integers(2**31 - 1)
        elif not isinstance(seed, numbers.Integral):
            seed = check_random_state(seed).randint(2**31 - 1)
        if seed < 0:
            raise ValueError(f"random_state must not be negative, found {seed}")
        holdout = self.validation_fraction if self.early_stopping else 0.0
        settings = Settings(**values, seed=int(seed), holdout=holdout)
        return for_trees(settings) if settings.transforms == _DEFAULTS.transforms else settings

    def _eval_datasets(
        self, eval_set: Any, qid: Any, group: Any, needs_lists: bool, categories: Categories | None
    ) -> list[Dataset]:
        """The data sets of ``eval_set``, in order.

        Args:
            eval_set: as in :meth:`fit`.
            qid: ``eval_qid`` of :meth:`fit`.
            group: ``eval_group`` of :meth:`fit`.
            needs_lists: whether each pair must have ``qid`` or ``group``. It must if there are
                several training lists: without them the best epoch would be chosen on one list.
            categories: the categories of categorical features.
        """
        if eval_set is None:
            if qid is not None or group is not None:
                raise ValueError("eval_qid and eval_group go with an eval_set")
            return []
        pairs, qids, groups = [eval_set], [qid], [group]
        if isinstance(eval_set, list) or _is_pairs(eval_set):
            pairs = list(eval_set)
            qids = _one_per_pair("eval_qid", qid, pairs)
            groups = _one_per_pair("eval_group", group, pairs)
        if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise ValueError("eval_set must be a pair (X, y), or a list of such pairs")
        datasets: list[Dataset] = []
        for pair, pair_qid, pair_group in zip(pairs, qids, groups, strict=True):
            if needs_lists and pair_qid is None and pair_group is None:
                raise ValueError(
                    f"there are several lists to train on, and pair {len(datasets)} of eval_set "
                    "has neither eval_qid nor eval_group: pass eval_qid= (or eval_group=[len(y)] "
                    "if its rows are one list; in a list, as eval_set is)"
                )
            X, _ = encode_frame(pair[0], categories or (None,) * self.n_features_in_)
            X, y = validate_data(self, X, pair[1], y_numeric=True, reset=False, **_CHECKS)
            datasets.append(self._dataset(X, y, pair_qid, pair_group, categories))
        return datasets

    def _dataset(
        self,
        X: Any,
        y: Array,
        qid: Any,
        group: Any,
        categories: Categories | None,
        weights: Array | None = None,
    ) -> Dataset:
        """The data set of rows that scikit-learn has checked; weights are per item."""
        order, offsets = _group_rows(len(y), qid, group)
        features = self._features(X, categories, self.missing)
        if y.dtype.kind in "US":  # texts, which scikit-learn converts only in arrays of objects
            y = y.astype(np.float64)
        if (y < 0).any():
            row = int((y < 0).argmax())
            raise ValueError(
                f"labels must be at least 0; Negative values in data: y[{row}] = {y[row]}"
            )
        return Dataset(
            features=features[order],
            labels=y[order],
            offsets=offsets,
            qids=np.arange(len(offsets) - 1).astype(np.str_),
            weights=None if weights is None else weights[order],
            # By these names the command line finds the columns of a file, in any order.
            feature_names=getattr(self, "feature_names_in_", None),
            categories=categories,
        )

    def _passes_checks(self, X: Any) -> bool:
        """Whether ``X`` surely passes scikit-learn's checks, which take longer than scoring.

        If so, :meth:`predict` skips them. A finite sum means that no value is NaN or infinite.
        """
        plain = (
            type(X) is np.ndarray
            and X.dtype in _FLOATS
            and hasattr(self, "model_")
            and self.model_.categories is None
            and not hasattr(self, "feature_names_in_")
            and X.ndim == 2
            and X.shape[0] > 0
            and X.shape[1] == self.n_features_in_
        )
        with np.errstate(over="ignore", invalid="ignore"):  # sums of large or infinite values
            return plain and math.isfinite(X.sum())

    def _check_one_list(self, rows: int) -> None:
        """Check that rows without ``qid`` and ``group`` may be one list: raise, or warn once."""
        if not self.model_.whole_lists or self.n_lists_ < 2:
            return
        if rows > self.longest_list_ > 0:
            raise ValueError(
                f"the model looks at the whole list of an item, and {rows} rows are more than the "
                f"longest list it was fitted on has, {self.longest_list_}: pass qid= with the "
                f"query of each row, as in predict(X, qid=qid) (or group=[{rows}] if the rows are "
                "one list)"
            )
        if not _Warned.one_list:
            _Warned.one_list = True
            warnings.warn(
                f"the {rows} rows are scored as the items of one query, since predict was given "
                "neither qid nor group: pass qid= with the query of each row. This is said once",
                stacklevel=3,
            )

    def _features(self, X: Any, categories: Categories | None, missing: Sequence[str]) -> Array:
        """Features that scikit-learn has checked, dense, in float32; missing values are NaN."""
        dense = X.toarray() if hasattr(X, "toarray") else X
        features = as_float32("X", dense, getattr(self, "feature_names_in_", None))
        if not missing:
            return features
        features = features.copy()
        MissingValues.of(missing).mark(features, number_columns(categories, features.shape[1]))
        return features


def _with_settings(documentation: str) -> str:
    """A docstring with the settings among its arguments, as :class:`Settings` describes them."""
    lines: list[str] = []
    for name in Ranker._get_param_names():
        field = Settings.model_fields.get(name)
        if field is not None and f"\n        {name}:" not in documentation:
            text = f"{name}: {' '.join(str(field.description).split())}"
            lines += textwrap.wrap(text, 100, initial_indent=" " * 8, subsequent_indent=" " * 12)
    return documentation.replace("Args:\n", "Args:\n" + "\n".join(lines) + "\n", 1)


if Ranker.__doc__ is not None:  # python -OO removes docstrings
    Ranker.__doc__ = _with_settings(Ranker.__doc__)


def _is_one_list(n: int, qid: Any, group: Any) -> bool:
    """Whether n rows are one list. False if finding out would need a sort by query."""
    if group is not None:
        return qid is None and isinstance(group, list) and group == [n]
    if qid is None:
        return True
    is_plain = type(qid) is np.ndarray and qid.dtype.kind in "iu" and qid.shape == (n,)
    return is_plain and n > 0 and bool((qid == qid[0]).all())


class _Warned:
    """Which warnings this process has given. ``predict`` must not change the estimator itself."""

    one_list = False


def _group_rows(n: int, qid: Any, group: Any) -> tuple[Array, Array]:
    """Group n rows by list, by query ids or group sizes; without both, all rows are one list.

    Returns:
        ``order`` ``[n]``, the rows sorted by their list, and ``offsets`` ``[lists + 1]``: the rows
        of list b are ``order[offsets[b]:offsets[b + 1]]``.
    """
    if qid is not None and group is not None:
        raise ValueError("give qid or group, not both")
    if group is not None:
        sizes = check_list_sizes("group", group)
        if sizes.sum() != n:
            raise ValueError(f"group adds up to {sizes.sum()} rows, X has {n}")
        return np.arange(n), _offsets(sizes)
    if qid is None:
        return np.arange(n), np.array([0, n])
    qids = np.asarray(qid)
    if qids.shape != (n,):
        raise ValueError(f"qid must have one value per row, {n}; found {list(qids.shape)}")
    if qids.dtype.kind in "fmM" and np.isnan(qids).any():
        row = int(np.isnan(qids).argmax())
        raise ValueError(f"qid of row {row} is NaN or NaT: every row must have one")
    if qids.dtype.kind == "O":
        for row, value in enumerate(qids):
            if not isinstance(value, str) and str(value) in _MISSING:
                raise ValueError(f"qid of row {row} is {value}: every row must have one")
    try:
        _, first_rows, codes = np.unique(qids, return_index=True, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"qid must be all numbers or all texts: {error}") from None
    # Lists are numbered in the order in which they first appear, as in every reader of files.
    list_of_code = np.empty_like(first_rows)
    list_of_code[np.argsort(first_rows)] = np.arange(len(first_rows))
    lists = list_of_code[codes]
    return np.argsort(lists, kind="stable"), _offsets(np.bincount(lists))


def _offsets(sizes: Array) -> Array:
    """The offsets ``[lists + 1]`` of lists of these sizes."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _labels(y: Any, n: int) -> Array:
    """The labels ``[n]`` in float32, checked."""
    array = check_array(y, ensure_2d=False, dtype=np.float32, ensure_min_samples=0, input_name="y")
    labels: Array = column_or_1d(array, warn=True)
    if len(labels) != n:
        raise ValueError(f"y must have one label per row, {n}; found {len(labels)}")
    return labels


def _to_python(value: Any) -> Any:
    """NumPy's numbers and arrays, which parameter grids often have, as Python's, for JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"cannot save a {type(value).__name__} in a Ranker's parameters: {value!r}")


def _is_pairs(value: Any) -> bool:
    """Whether a value is a tuple of pairs (X, y), and not one pair whose X and y are tuples."""
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and np.ndim(pair[0]) == 2 for pair in value
    )


def _one_per_pair(name: str, values: Any, pairs: list[Any]) -> list[Any]:
    """The values of an argument, one for each pair of ``eval_set``; None becomes one None each."""
    if values is None:
        return [None] * len(pairs)
    if not isinstance(values, list | tuple) or len(values) != len(pairs):
        raise ValueError(f"{name} must be a list of {len(pairs)}, as eval_set is")
    return list(values)


def _evals_result(
    history: list[dict[str, float]], settings: Settings, pairs: int
) -> dict[str, dict[str, list[float]]]:
    """The history by data set and metric, as LightGBM and XGBoost have it.

    Args:
        history: the values of each epoch by name.
        settings: of the training.
        pairs: the number of data sets that were evaluated: pairs of ``eval_set``, or 1 for lists
            that were held out.
    """
    losses = [epoch["loss"] for epoch in history if "loss" in epoch]  # boosted trees have none
    result = {"training": {"loss": losses}}
    for number in range(pairs):
        # The last pair is the validation data; in the history, its metrics have no prefix.
        prefix = "" if number == pairs - 1 else f"{_VALID}{number} "
        result[f"{_VALID}{number}"] = {
            name: [epoch.get(prefix + name, float("nan")) for epoch in history]
            for name in settings.logged
        }
    return result


def _map_values(
    result: dict[str, dict[str, list[Any]]], change: Callable[[Any], Any]
) -> dict[str, dict[str, list[Any]]]:
    """``evals_result_`` with a function applied to each of its values."""
    return {
        data: {metric: [change(value) for value in values] for metric, values in metrics.items()}
        for data, metrics in result.items()
    }
