"""What a measurement hands over: counted samples and all that gives them meaning; written to a file and read back."""
