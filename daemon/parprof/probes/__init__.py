"""Where a process must be probed: agents' hooks become sites in files; what they cost; which are shared."""
