"""Bridges to other systems for metrics and traces; each needs its optional extra.

No other module of filewheel imports a bridge. A module imports from the library, and only from modules to its left:

    extra prometheus otel

"""
