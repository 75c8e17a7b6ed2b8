"""Optimisers as torch and DeepSpeed take them."""
