"""The daemon's configuration: its keys, where their values come from, and its text."""
