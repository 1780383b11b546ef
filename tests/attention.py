"""Models for tests of attention: at first lambda is a constant, which would hide mistakes."""

import torch

from dnformer.nn import DNFormer


def lively_model(in_channels: int, out_channels: int, **options: object) -> DNFormer:
    """A float64 model of width 8 and 2 heads, its lambda drawn at random."""
    torch.manual_seed(0)
    model = DNFormer(in_channels, 8, out_channels, 2, 2, **options).double()
    for block in model.blocks:
        for parameter in () if block.attention.lam is None else block.attention.lam.parameters():
            torch.nn.init.normal_(parameter)
    return model
