from . import cells as cells
from . import figures as figures
from . import report as report
from . import sweep_tables as sweep_tables
