"""The bytes of a wheel, as docs/format.md specifies them: file names, frames, records, ids, and the limits of values.

Opens no file.
"""
