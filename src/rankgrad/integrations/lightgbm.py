"""Every loss as an objective of LightGBM, every metric for its evaluation and early stopping.

::

    import lightgbm
    from rankgrad.integrations.lightgbm import metric, objective

    lightgbm.train(
        {"objective": objective("lambdaloss@10"), "metric": "none"},
        lightgbm.Dataset(X, y, group=sizes),
        valid_sets=[...],
        feval=metric("ndcg@10"),
        callbacks=[lightgbm.early_stopping(50)],
    )

    lightgbm.LGBMRanker(objective=objective("neural_ndcg@10")).fit(
        X, y, group=sizes, eval_X=..., eval_y=..., eval_group=..., eval_metric=metric("ndcg@10")
    )

Row weights of LightGBM are item weights of the loss, and of the metric.
"""

from rankgrad.boosting.lightgbm import Evaluation, Objective, metric, objective

__all__ = ["Evaluation", "Objective", "metric", "objective"]
