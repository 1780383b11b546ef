"""The models that DNFormer is compared with, one a file."""
