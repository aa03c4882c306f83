"""Languages that bring stacks of their own: their functions in what the unwinder sees. A folder for each."""
