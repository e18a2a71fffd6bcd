"""Debiasing at class and sample levels: fairer class accuracies from class probabilities.

The public names are those of ``__init__.pyi``. They are imported on first use, so that
``import dcs`` stays fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
