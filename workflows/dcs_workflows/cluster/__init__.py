"""Sweeps on Ray: connection, placement, driver, scoring actors and jobs."""
