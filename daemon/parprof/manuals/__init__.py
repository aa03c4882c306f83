"""What a person reads and types beside the commands, made from their parsers."""
