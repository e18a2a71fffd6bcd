"""Running on Ray: connecting, placement, the driver, scoring actors and jobs."""
