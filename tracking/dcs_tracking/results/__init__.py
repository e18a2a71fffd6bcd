"""Pure functions of cell records: frames, tables, figures and the report."""
