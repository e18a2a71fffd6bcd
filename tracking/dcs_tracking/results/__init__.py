"""Pure functions of cell records: frames, tables, figures and the report."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
