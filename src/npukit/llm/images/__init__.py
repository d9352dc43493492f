"""Images of rows and requests: found, checked by their headers, counted as tokens, and read when a batch needs them."""
