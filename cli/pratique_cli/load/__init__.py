"""A small open-loop load driver: a seeded trace, a client that keeps to it whatever the server does, and the arithmetic of what it saw.

``trace`` and ``measures`` are pure; ``client`` is the only module that opens connections. ``python -m bench.load`` runs it from a shell.
"""

from pratique_cli.load.client import Observation, Target, run_trace
from pratique_cli.load.measures import Slo, jain, measure, percentiles
from pratique_cli.load.trace import Planned, Tenant, make_trace

__all__ = [
    "Observation",
    "Planned",
    "Slo",
    "Target",
    "Tenant",
    "jain",
    "make_trace",
    "measure",
    "percentiles",
    "run_trace",
]
