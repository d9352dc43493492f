"""A stand-in for blobfile where all files are local."""

from os import listdir
from os.path import basename, dirname, exists, isdir, join

BlobFile = open
__all__ = ["BlobFile", "basename", "dirname", "exists", "isdir", "join", "listdir"]
