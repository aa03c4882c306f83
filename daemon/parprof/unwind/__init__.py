"""Unwind tables: where each instruction's caller is found, from the call frame information of ELF files."""
