"""Byte layouts: what is on disk, drawn and coded in one place each. No file is opened here."""
