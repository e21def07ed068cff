"""The bytes of a wheel, as docs/format.md names them: names of files, frames, records, ids, and the bounds of each
value. Opens nothing.
"""
