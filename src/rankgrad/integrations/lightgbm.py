"""Every loss as an objective of LightGBM, every metric for its evaluation and early stopping.

::

    import lightgbm
    from rankgrad.integrations.lightgbm import metric, objective

    train = lightgbm.Dataset(X, y, group=sizes)
    lightgbm.train(
        {"objective": objective("lambdaloss@10"), "metric": "none"},
        train,
        valid_sets=[lightgbm.Dataset(X_vali, y_vali, group=sizes_vali, reference=train)],
        feval=metric("ndcg@10"),
        callbacks=[lightgbm.early_stopping(50)],
    )
    lightgbm.LGBMRanker(objective=objective("neural_ndcg@10")).fit(X, y, group=sizes)

Row weights of LightGBM are item weights of the loss and of the metric. The code is in
``rankgrad.boosting``.
"""

from rankgrad.boosting.lightgbm import Evaluation, Objective, metric, objective

__all__ = ["Evaluation", "Objective", "metric", "objective"]
