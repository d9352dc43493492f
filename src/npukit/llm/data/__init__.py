"""From files and hubs to token batches: read, lay out, render, tokenise, mix, pack, collate."""
