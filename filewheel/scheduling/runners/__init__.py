"""Where a handler runs: inline, on threads, on an event loop, or in processes."""
