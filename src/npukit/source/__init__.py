"""Find, read, resolve names in, and edit source files. Nothing here knows of Ascend."""

from npukit.source.document import Document, Unreadable, apply_edits, read
from npukit.source.find import find
from npukit.source.place import Edit, Place
from npukit.source.python import PythonFile

__all__ = ["Document", "Edit", "Place", "PythonFile", "Unreadable", "apply_edits", "find", "read"]
