"""Boosted trees: losses as objectives of LightGBM and XGBoost, and a training with either."""
