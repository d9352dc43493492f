"""What the pages ask for, one module a page."""
