"""A trained model as a folder of its own: plain files that need no run and no dataset.

`config.json` says what the model is, `model.safetensors` has its weights, `README.md` is its card.
"""

from dnformer.export.load import LoadedModel, load
from dnformer.export.write import Exported, export

__all__ = ["Exported", "LoadedModel", "export", "load"]
