"""What runs inside a target, for the modes that instrument it: built, started with it, and read when it ends.

The C sources are in ``instrument/``. What they leave behind was written by the target's own process, so it is
hostile input.
"""
