"""An execution trace: what each thread did when, for Perfetto to show, and what it says of the machine."""
