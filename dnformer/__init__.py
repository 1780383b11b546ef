"""DNFormer: mini-batch training of differential-attention graph transformers."""

__version__ = "0.1.0"
