"""Bridges to other systems for metrics and traces; each needs its optional extra.

No other module of filewheel imports a bridge. A bridge imports from the library and from modules to its left only:

    extra prometheus otel

"""
