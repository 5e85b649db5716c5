"""Bytes: the seam every engine implements, the keys, and the records kept under them."""
