"""Why a DNFormer says of a node what it says: neighbours kept and subtracted, hop by hop."""

from dnformer.explain.run import Explanation, Explanations, NodeFacts, explain

__all__ = ["Explanation", "Explanations", "NodeFacts", "explain"]
