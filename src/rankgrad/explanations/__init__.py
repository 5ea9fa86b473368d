"""Explanations of a trained ranker: which features it relies on, and why one item is above another.

``_importance`` permutes features, ``_attribution`` attributes a difference of scores to features,
``pair`` explains one pair of items with it, and ``_explanation`` a whole data set with both.
``rankgrad explain`` is their command.

>>> from rankgrad import explanations
>>> sorted(explanations.__all__)
['Explanation', 'Importance', 'PairExplanation', 'explain', 'explain_pair', 'pair_attributions',
 'permutation_importance']
"""

from rankgrad.explanations._attribution import pair_attributions
from rankgrad.explanations._explanation import Explanation, explain
from rankgrad.explanations._importance import Importance, permutation_importance
from rankgrad.explanations.pair import PairExplanation, explain_pair

__all__ = [
    "Explanation",
    "Importance",
    "PairExplanation",
    "explain",
    "explain_pair",
    "pair_attributions",
    "permutation_importance",
]
