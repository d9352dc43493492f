"""Images of rows and requests: locate them, check their headers, count their tokens, and read them for a batch."""
