"""What there is to know of a running process: who it is, its threads, its memory, and what code it maps where."""
