"""MLflow: runs, queries and tables of sweeps.

`Archive` saves every finished cell on disk, `Recorder` writes the runs of a sweep, `sync` sends
missing runs to a store and `queries` reads cells back; `Cells` are what tables and figures are
made of (`dcs_tracking.results`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
