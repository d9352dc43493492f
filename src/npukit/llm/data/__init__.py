"""Turn files and hub data sets into token batches: read, lay out, render, tokenise, mix, pack, collate."""
