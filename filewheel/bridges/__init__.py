"""Bridges to what others measure and trace with; each needs its optional extra, and is loaded only when imported.

Nothing of filewheel imports a bridge. Each module stands on the library alone, and imports only from modules to its
left:

    extra prometheus otel

"""
