"""The image workload's data: digits, files and arrays made of them, and who loads them."""
