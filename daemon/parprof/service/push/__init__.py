"""Pushes profiles to stores on other machines: one file for each kind of store, one queue on disk for each."""
