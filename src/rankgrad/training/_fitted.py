"""FittedRanker: fitted transforms with a trained network or trees, from raw features to scores.

:func:`rankgrad.training.fit` returns one in its :class:`FitResult`. It is saved as a folder::

    model.json           format, settings, names and categories of the features, checksums
    model.safetensors    the tensors of transforms and network
    trees.txt or .json   boosted trees, if it has any, in their library's own format
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from rankgrad import _files, _schemas
from rankgrad._quoting import message_of
from rankgrad._threads import available, for_work, passes
from rankgrad.boosting.boosters import contributor, predictor
from rankgrad.data._blocks import check_not_infinite
from rankgrad.data._dataset import ArrayError, Categories, Dataset, as_float32, categories_of
from rankgrad.data.batches import Batches
from rankgrad.data.transforms import Pipeline, SplitColumns
from rankgrad.models import EmbeddedScorer, Model, Scorer, models
from rankgrad.models.trees import LightGBM, TreeModel, XGBoost
from rankgrad.training._absent_features import feature_presence
from rankgrad.training._preparation import Preparation
from rankgrad.training._settings import Settings

FORMAT = "rankgrad model"
VERSION = 1
WEIGHTS, MANIFEST = "model.safetensors", "model.json"

_FILES = {WEIGHTS, MANIFEST, LightGBM.file, XGBoost.file}  # which save may replace
_VALUES = 1 << 22  # values of features (items × features) that are scored, or checked, at a time
_ROWS = 256  # items per part of the compiled preparation, for networks that score single items
_DOCUMENTS = 1 << 15  # items that _score_lists scores at a time
_PREPARED = 1 << 12  # items that _score_prepared scores at a time, fewer: members copy inputs


class _Manifest(TypedDict):
    """The part of ``model.json`` that loading needs."""

    settings: dict[str, Any]
    n_inputs: int
    custom: str | None  # the class of a user's own network; None if the settings build it
    # Missing in files of the first versions.
    feature_names: NotRequired[list[str] | None]
    zero_based: NotRequired[bool | None]
    categories: NotRequired[list[list[str] | None] | None]
    feature_presence: NotRequired[list[float] | None]


@dataclass(eq=False, repr=False)
class FittedRanker:
    """Fitted transforms, a trained network and the settings they come from.

    Args:
        settings: of the training run.
        transform: the fitted transforms of raw features.
        network: scores the transformed features: a network, or trees as a :class:`TreeScorer`.
        custom: whether the network is the user's own, which the settings cannot build.
        feature_names: of the training data, in the order of its features, if it has names.
        zero_based: whether the training data was a sparse file that counts features from 0.
        categories: of the categorical features of the training data, if it has any.
        feature_presence: for each feature, the share of training lists in which some item has a
            value other than 0; None if it is not known.

    >>> from rankgrad.training import FittedRanker, Settings
    >>> features = np.random.default_rng(0).random((6, 3), dtype=np.float32)
    >>> ranker = FittedRanker.new(Settings(), features)
    >>> ranker.predict(features, offsets=np.array([0, 2, 6])).shape
    (6,)
    """

    settings: Settings
    transform: Pipeline | SplitColumns
    network: nn.Module
    _: KW_ONLY
    custom: bool = False
    feature_names: tuple[str, ...] | None = None
    zero_based: bool | None = None
    categories: Categories | None = None
    feature_presence: list[float] | None = None

    @classmethod
    def new(
        cls,
        settings: Settings,
        features: np.ndarray,
        offsets: np.ndarray | None = None,
        network: nn.Module | None = None,
        *,
        categories: Categories | None = None,
        **description: Any,
    ) -> FittedRanker:
        """Fit the transforms on these features, and build a network that is not trained yet.

        Args:
            settings: of the training run.
            features: ``[N, F]``, raw.
            offsets: ``[B + 1]`` of the lists; without them all items are one list.
            network: the user's own; None for that of the settings.
            categories: of the categorical features.
            description: further attributes of the training data, by :func:`describe`.

        Returns:
            The ranker, to be trained.
        """
        transform = _build_transform(settings, categories)
        transform.fit(features, offsets)
        custom = network is not None
        if network is None:
            network = _build_network(models.get(settings.model), transform, transform.n_outputs)
        return cls(
            settings,
            transform,
            network,
            custom=custom,
            categories=categories,
            **description,
        )

    @property
    def n_features(self) -> int:
        """The number of raw features of an item."""
        return self.transform.n_features

    @property
    def per_item(self) -> bool:
        """Whether an item's score depends on that item alone."""
        return bool(getattr(self.network, "per_item", False))

    @property
    def whole_lists(self) -> bool:
        """Whether a score is known to depend on the other items of the list.

        It is not known of a user's own network.
        """
        return not self.per_item and not self.custom

    @property
    def members(self) -> int:
        """The number of networks in an ensemble; each has its own loss in training."""
        return self.network.members if isinstance(self.network, Scorer) else 1

    def predict(self, features: np.ndarray, offsets: np.ndarray | None = None) -> np.ndarray:
        """The scores of items, ``[N]`` float32; higher is better.

        Args:
            features: ``[N, F]``, raw; an array or a memory map.
            offsets: ``[B + 1]``: list b is the rows ``offsets[b]:offsets[b + 1]``. Without them all
                items are one list, which matters to models whose scores depend on the whole list.

        Returns:
            The scores, in the order of the rows.

        Raises:
            ValueError: the number of features is not that of the training data.
            ArrayError: ``offsets`` do not run from 0 to N.
        """
        if features.ndim != 2 or features.shape[1] != self.n_features:
            raise ValueError(
                f"the model was trained on {self.n_features} features, found the shape "
                f"{list(features.shape)}: give [items, {self.n_features}]"
            )
        if offsets is not None and (offsets[0] != 0 or offsets[-1] != len(features)):
            raise ArrayError(
                "offsets",
                f"must run from 0 to the number of items, {len(features)}; found {offsets[0]} to "
                f"{offsets[-1]}",
            )
        was_training = self.network.training
        if was_training:
            self.network.eval()
        try:
            with torch.inference_mode(), for_work(self._products_per_item * len(features)):
                if self._device.type == "cpu" and self._preparation is not None:
                    return self._score_prepared(self._preparation, features, offsets)
                if self.per_item:
                    return self._score_items(features)
                is_one_list = offsets is None or len(offsets) == 2
                if not len(features) or (is_one_list and len(features) <= _DOCUMENTS):
                    return self._score_list(features)
                return self._score_lists(features, offsets)
        finally:
            if was_training:
                self.network.train()

    def _score_prepared(
        self, preparation: Preparation, features: np.ndarray, offsets: np.ndarray | None
    ) -> np.ndarray:
        """The scores ``[N]``, with the network's inputs computed by one compiled pass.

        Args:
            preparation: the compiled pass.
            features: ``[N, F]``, raw.
            offsets: ``[B + 1]`` of the lists; None for one list.
        """
        if self.per_item:  # lists do not matter: parts of equal size in their place
            offsets = np.append(np.arange(0, len(features), _ROWS), len(features))
        elif offsets is None or len(offsets) == 2:
            offsets = np.array([0, len(features)])
        else:
            offsets = self._unlabeled(features, offsets).offsets
        network: Any = self.network
        scores = np.empty(len(features), np.float32)
        first = 0
        while first < len(offsets) - 1:  # lists first:last, up to _PREPARED items
            last = int(np.searchsorted(offsets, offsets[first] + _PREPARED, side="right")) - 1
            last = max(last, first + 1)
            start, stop = int(offsets[first]), int(offsets[last])
            rows = as_float32("features", features[start:stop], self.feature_names, first=start)
            inputs = torch.from_numpy(preparation(rows, offsets[first : last + 1] - start, start))
            if self.per_item:
                # A matrix product with one column rounds its last rows differently if the number of
                # rows is not a multiple of 8. With padding it is one, and equal items get equal
                # scores.
                inputs = nn.functional.pad(inputs, (0, 0, 0, -len(inputs) % 8))
            if self.per_item or network.inputs_score_alone:
                scores[start:stop] = network.score_inputs(inputs, None)[: stop - start].numpy()
            else:  # an item's score depends on the inputs of its list
                for begin, end in pairwise(offsets[first : last + 1] - start):
                    of_list = network.score_inputs(inputs[begin:end], None)
                    scores[start + begin : start + end] = of_list.numpy()
            first = last
        return scores

    def _score_list(self, features: np.ndarray) -> np.ndarray:
        """The scores ``[n]`` of one list ``[n, F]``, such as a request, without batching."""
        if not len(features):
            return np.zeros(0, np.float32)
        block = torch.from_numpy(np.array(as_float32("features", features, self.feature_names)))
        values = self.transform.transform(block.to(self._device))[None]
        inputs = [values]
        if not isinstance(self.network, Scorer):  # a Scorer takes no mask if there is no padding
            inputs.append(torch.ones_like(values[..., 0], dtype=torch.bool))
        scores: np.ndarray = self.network(*inputs)[0].float().cpu().numpy()
        return scores

    def _score_items(self, features: np.ndarray) -> np.ndarray:
        """The scores ``[N]`` of items ``[N, F]``, for networks that score each item by itself."""
        scores = np.empty(len(features), np.float32)
        for start, rows in self._blocks(features):
            values = self.network(self.transform(rows.to(self._device)))
            scores[start : start + len(rows)] = values.float().cpu().numpy()
        return scores

    def _score_lists(self, features: np.ndarray, offsets: np.ndarray | None) -> np.ndarray:
        """The scores ``[N]`` of lists, in padded batches of lists of similar length."""
        lists = self._unlabeled(features, offsets)
        for _ in self._blocks(features):  # which checks them; batches do not
            pass
        # With memory=0 no features stay on the device, so its memory is bounded by a batch.
        batches = Batches(lists, transform=self.transform, device=self._device, memory=0)
        scores = np.empty(len(features), np.float32)
        for batch in batches.evaluation(_DOCUMENTS):
            assert batch.mask is not None
            batch_scores = self.network(batch.features, batch.mask)[batch.mask]
            selected = lists.select(batch.lists.numpy())
            # ``items``: the positions of the batch's items among all items.
            shifts = lists.offsets[batch.lists.numpy()] - selected.offsets[:-1]
            items = np.arange(selected.n_items) + np.repeat(shifts, selected.lengths)
            scores[items] = batch_scores.float().cpu().numpy()
        return scores

    def _blocks(self, features: np.ndarray) -> Iterator[tuple[int, Tensor]]:
        """Raw features in blocks of rows, float32: the first row's number, and the rows.

        Raises:
            ValueError: a value is infinite.
        """
        n_rows = max(1, _VALUES // max(1, features.shape[1]))
        for start in range(0, len(features), n_rows):
            rows = features[start : start + n_rows]
            block = np.array(as_float32("features", rows, self.feature_names, first=start))
            check_not_infinite(torch.from_numpy(block), start)
            yield start, torch.from_numpy(block)

    def _unlabeled(self, features: np.ndarray, offsets: np.ndarray | None) -> Dataset:
        """A data set of these lists, with labels of 0; the values are checked."""
        if offsets is None:
            offsets = np.array([0, len(features)])
        qids, labels = np.arange(len(offsets) - 1).astype(np.str_), np.zeros(len(features))
        return Dataset(features, labels, offsets, qids, feature_names=self.feature_names)

    @cached_property
    def _preparation(self) -> Preparation | None:
        """The compiled pass from raw features to the network's inputs; None if there is none."""
        return Preparation.of(self)

    @cached_property
    def _products_per_item(self) -> int:
        """The number of multiplications that scoring one item takes."""
        return passes(self.network, 1)

    @property
    def _device(self) -> torch.device:
        """The device of the network; the CPU for one without parameters, such as trees."""
        parameter = next(self.network.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    def to(self, device: torch.device | str) -> FittedRanker:
        """Move it to a device, and return it; trees stay on the CPU.

        Args:
            device: such as ``"cuda"``.

        Returns:
            The ranker itself.
        """
        self.network.to(device)
        self.transform.to(self._device)
        return self

    def tensors(self) -> dict[str, Tensor]:
        """The learned tensors of transforms and network, by name.

        Returns:
            The tensors; names begin with ``transform.`` or ``network.``.
        """
        return {
            **{f"transform.{name}": value for name, value in self.transform.state_dict().items()},
            **{f"network.{name}": value for name, value in self.network.state_dict().items()},
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load tensors that :meth:`tensors` returned.

        Args:
            tensors: by name.

        Raises:
            ValueError: they are of another model.
        """
        self.__dict__.pop("_preparation", None)  # it was made from the previous tensors
        for prefix, module in (("transform.", self.transform), ("network.", self.network)):
            state = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            try:
                module.load_state_dict(state)
            except RuntimeError as error:
                reason = message_of(error, 300)
                raise ValueError(f"the weights are of another model: {reason}") from None

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder with ``model.safetensors`` and ``model.json``, replacing a model there.

        Trees are saved beside them in their library's own format: ``trees.txt`` or ``trees.json``.

        The write is atomic: if it fails, the folder holds the previous model.

        Args:
            folder: where to write; it need not exist.

        Raises:
            FileExistsError: there is something other than a model at the path.
        """
        _files.check_folder_replaceable(Path(folder), _FILES, "a model")
        with _files.atomic_folder(Path(folder)) as place:
            self.write(place)

    def write(self, folder: Path) -> None:
        """Write the files of :meth:`save` into an existing folder, beside its other files.

        Args:
            folder: the folder.
        """
        _files.write_tensors(folder / WEIGHTS, self.tensors())
        names = [WEIGHTS]
        if isinstance(self.network, TreeScorer):
            names.append(self.network.model.file)
            _files.write(folder / self.network.model.file, self.network.saved)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "n_features": self.n_features,
            "n_inputs": self.transform.n_outputs,
            "feature_names": self.feature_names,
            "zero_based": self.zero_based,
            "categories": self.categories,
            "feature_presence": self.feature_presence,
            "custom": type(self.network).__qualname__ if self.custom else None,
            "settings": self.settings.applicable(),
        }
        _files.write_json(folder / MANIFEST, manifest, names)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], network: nn.Module | None = None) -> FittedRanker:
        """Read a model that :meth:`save` wrote.

        Args:
            folder: a saved model, or the ``best`` or ``last`` folder of a run.
            network: a module of the same class and sizes, if the model is a user's own network.

        Returns:
            The ranker, for evaluation.

        Raises:
            FileNotFoundError: there is no model in the folder.
            ValueError: a file is damaged, or the model is a user's own network and ``network`` is
                missing or of other sizes.
        """
        return _files.read_folder(Path(folder), MANIFEST, lambda place: cls._load(place, network))

    @classmethod
    def _load(cls, folder: Path, network: nn.Module | None) -> FittedRanker:
        """Build transforms and network by the manifest, then load their tensors."""
        manifest = read_manifest(folder)
        try:
            settings = Settings(**manifest["settings"])
        except ValueError as error:
            raise ValueError(f"{folder / MANIFEST}: {error}") from None
        if network is None and manifest["custom"] is not None:
            raise ValueError(
                f"the model in {folder} is a network of your own, {manifest['custom']}: give a new "
                "one as network= (model= of Ranker.load), and its weights are loaded into it"
            )
        tensors = _files.read_tensors(folder / WEIGHTS, manifest)
        model = models.get(settings.model)
        categories = categories_of(manifest.get("categories"))
        transform = _build_transform(settings, categories)
        # For networks, _build_transform appends a step that imputes missing values, unless the
        # settings have one. Trees have no such step, nor have networks of the first versions, whose
        # tensors lack those of the step.
        imputes = f"transform.steps.{len(settings.transforms)}.values" in tensors
        if isinstance(model, TreeModel) or not (imputes or categories):
            transform = Pipeline(settings.transforms)
        if network is None and isinstance(model, TreeModel):
            network = TreeScorer(model, _files.read_part(folder / model.file, manifest))
        elif manifest["n_inputs"] > sum(tensor.numel() for tensor in tensors.values()):
            # The first layer has a weight or more for each input, so n_inputs cannot be larger. A
            # network built for a damaged number could take any amount of memory.
            raise _files.damaged(folder / MANIFEST, "'n_inputs' is wrong")
        if network is None:
            network = _build_network(model, transform, manifest["n_inputs"])
        names = manifest.get("feature_names")
        ranker = cls(
            settings,
            transform,
            network,
            custom=manifest["custom"] is not None,
            feature_names=None if names is None else tuple(names),
            zero_based=manifest.get("zero_based"),
            categories=categories,
            feature_presence=manifest.get("feature_presence"),
        )
        try:
            ranker.load_tensors(tensors)
        except ValueError as error:
            raise ValueError(f"{folder / WEIGHTS}: {error}") from None
        presence = ranker.feature_presence
        if presence is not None and len(presence) != ranker.n_features:
            raise _files.damaged(folder / MANIFEST, "'feature_presence' has a wrong length")
        network.eval()
        return ranker


class TreeScorer(nn.Module):
    """Trees as a network: ``scorer(features [..., n, f]) -> scores [..., n]``, on the CPU.

    Args:
        model: the library and its options.
        saved: the trees in the library's own format.
    """

    per_item = True

    def __init__(self, model: TreeModel, saved: bytes) -> None:
        super().__init__()
        self.model, self.saved = model, saved
        self._predict: Any = None

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """The scores ``[..., n]`` of items ``[..., n, f]``; 0 where ``mask`` is False."""
        if self._predict is None:
            self._predict = predictor(self.model.name, self.saved, available())  # type: ignore[arg-type]
        flat = features.reshape(-1, features.shape[-1]).cpu().numpy()
        scores = torch.from_numpy(self._predict(flat)).float().to(features.device)
        scores = scores.reshape(features.shape[:-1])
        return scores if mask is None else scores.where(mask, 0.0)

    def contributions(self, features: Tensor) -> Tensor:
        """The contribution of each feature to the scores of items, by TreeSHAP.

        See Lundberg et al. 2018. The constant that all items share is left out, so the sums of two
        items' contributions differ by as much as their scores.

        Args:
            features: ``[n, f]``.

        Returns:
            ``[n, f]`` in float64.
        """
        contribute = contributor(self.model.name, self.saved, available())  # type: ignore[arg-type]
        with_constant = contribute(features.cpu().numpy())  # [n, f + 1], the constant last
        return torch.from_numpy(with_constant[:, :-1]).double()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_predict": None}  # a booster's handle is valid in one process


@dataclass(frozen=True)
class FitResult:
    """The result of :func:`rankgrad.training.fit`.

    Attributes:
        model: the ranker of the best epoch; of the last epoch without validation data.
        history: one entry per epoch: epoch, loss, learning_rate, seconds and the validation
            metrics.
        best_epoch: counted from 1.
        best_value: the validation metric of the best epoch; None without validation data.
        settings: of the run.
        seconds: how long training took, the time before it was resumed included.
        stopped: why training ended: ``"epochs"``, ``"patience"`` or ``"interrupted"``.
    """

    model: FittedRanker
    history: list[dict[str, float]]
    best_epoch: int
    best_value: float | None
    settings: Settings
    seconds: float
    stopped: str


def describe(data: Dataset) -> dict[str, Any]:
    """The attributes of training data that a ranker keeps, as arguments of FittedRanker."""
    attributes = ("feature_names", "zero_based", "categories")
    described = {name: getattr(data, name) for name in attributes}
    return {**described, "feature_presence": feature_presence(data)}


def _build_transform(settings: Settings, categories: Categories | None) -> Pipeline | SplitColumns:
    """The transforms in front of a network, not fitted yet; they impute missing values."""
    steps = Pipeline.for_network(settings.transforms)
    if categories is None:
        return steps
    # The sizes of categorical features; 0 for numerical ones.
    return SplitColumns(steps, [0 if names is None else max(1, len(names)) for names in categories])


def _build_network(model: Model, transform: Pipeline | SplitColumns, n_inputs: int) -> nn.Module:
    """A new network, with embeddings in front if there are categorical features."""
    if isinstance(transform, SplitColumns):
        return EmbeddedScorer(model, n_inputs, transform.category_sizes)
    return model.build(n_inputs)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check ``model.json`` in a folder."""
    path = folder / MANIFEST
    if not path.is_file():
        reason = f"it has no {MANIFEST}" if folder.is_dir() else "there is no such folder"
        raise FileNotFoundError(f"there is no model in {folder}: {reason}")
    return _schemas.read_versioned(path, _Manifest, FORMAT, VERSION, "train the model again")
