from . import client as client
from . import queries as queries
from . import serving as serving
