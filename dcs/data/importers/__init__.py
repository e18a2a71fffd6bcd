"""Other people's files -> probability tables.

A format is one function ``read(path, options)`` that gives the tables a path holds, by part.
"""

from dcs.data.importers.common import ImportOptions
from dcs.data.importers.registry import (
    IMPORTERS,
    Importer,
    format_names,
    import_file,
    import_tables,
    read_tables,
    table_sources,
)

__all__ = [
    "IMPORTERS",
    "ImportOptions",
    "Importer",
    "format_names",
    "import_file",
    "import_tables",
    "read_tables",
    "table_sources",
]
