"""Every loss as an objective of XGBoost, every metric for its evaluation and early stopping.

::

    import xgboost
    from rankgrad.integrations.xgboost import metric, objective

    ndcg = metric("ndcg@10")
    xgboost.train(
        {"disable_default_eval_metric": 1},
        xgboost.DMatrix(X, y, qid=qid),
        500,
        obj=objective("lambdaloss@10"),
        evals=[(validation, "vali")],
        custom_metric=ndcg,
        maximize=ndcg.higher_is_better,
        early_stopping_rounds=50,
    )

``XGBRanker`` refuses objectives that are functions. Use ``xgboost.train`` as above, or
``XGBRegressor(objective=objective("lambdaloss@10", group=sizes))``: XGBoost's scikit-learn
estimators pass no groups, so the objective takes them. A DMatrix with groups has one weight per
list; weights of rows are an argument of :func:`objective`. The code is in ``rankgrad.boosting``.
"""

from rankgrad.boosting.xgboost import Evaluation, Objective, metric, objective, tree_objective

__all__ = ["Evaluation", "Objective", "metric", "objective", "tree_objective"]
