"""What npukit's web pages share: styles, words, Markdown, and the headers that keep a page to its own server."""
