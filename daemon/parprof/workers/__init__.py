"""Child processes for what may crash, hang or grow: how to start, ask, end and confine them, and their caches."""
