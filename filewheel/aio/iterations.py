"""The keeper that a wheel's iterations over `due()` share: opened by the first, closed with the last.

Invariant: a keeper that the program prepared itself is used and never closed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakSet

from filewheel.aio.due import Due
from filewheel.aio.keeper import AsyncKeeper


class Iterations:
    """The iterations of one AsyncWheel, in its event loop."""

    def __init__(self) -> None:
        self._own: AsyncKeeper | None = None
        """The one that was opened to iterate."""
        self._users = WeakSet[Due]()
        """The iterations that use it. One that was left by `break` and dropped does not, and cannot close it."""

    async def begin(
        self, due: Due, keepers: Callable[[], Sequence[AsyncKeeper]], make: Callable[[], AsyncKeeper], *, wait: bool
    ) -> AsyncKeeper:
        """Return the keeper for an iteration, opened: one of the wheel's, or one that is made.

        Raises what AsyncKeeper.open does.
        """
        for closed in [keeper for keeper in keepers() if keeper.is_closed]:
            await closed.close()  # until it has let go of the lock
        keeper = next((keeper for keeper in keepers() if keeper.is_used), None)
        if keeper is None:
            keeper = self._own = make()
            self._users.clear()
        if keeper is self._own:
            self._users.add(due)
        return await keeper.open(wait=wait)

    async def end(self, due: Due) -> None:
        """Close the keeper when this was the last iteration that used it."""
        if due in self._users:
            self._users.discard(due)
            if not self._users and self._own is not None:
                await self._own.close()
