"""Find, read, resolve names in, and edit source files. Nothing here is specific to Ascend."""

from npukit.source.document import Document, Unreadable, apply_edits, read
from npukit.source.find import find
from npukit.source.place import Edit, Place
from npukit.source.python import PythonFile, per_file

__all__ = ["Document", "Edit", "Place", "PythonFile", "Unreadable", "apply_edits", "find", "per_file", "read"]
