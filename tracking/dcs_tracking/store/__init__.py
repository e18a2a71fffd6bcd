"""The MLflow store: writing runs, reading them back, serving schemes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
