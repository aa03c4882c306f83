"""One life cycle: processes are watched, their source of n_w is chosen, facts are drained until they end."""
