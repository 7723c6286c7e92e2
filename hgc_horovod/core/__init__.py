"""The NumPy reference: it defines every byte, and imports nothing but NumPy."""
