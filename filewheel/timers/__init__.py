"""Timers in memory: the schemes of the literature, and the timers that are built on them. They die with the process.

A *scheme* decides where a timer waits (`scheme.py` has the interface); a *timer* drives one with a thread.
What must not be lost belongs in a `filewheel.Wheel`. `import filewheel` does not import this package, and it uses
nothing of the store.
"""

from filewheel.native.compiled import LoopTimeout
from filewheel.timers.async_delay_queue import AsyncDelayQueue
from filewheel.timers.binary_heap import BinaryHeap
from filewheel.timers.delay_queue import DelayQueue
from filewheel.timers.entry import Entry, Slot, TimerState
from filewheel.timers.growing import Growing
from filewheel.timers.hashed_ordered import HashedOrdered
from filewheel.timers.hashed_unordered import HashedUnordered
from filewheel.timers.hierarchical import Hierarchical
from filewheel.timers.loop_wheel import LoopWheel, PeriodicTimeout, TimeoutScope
from filewheel.timers.ordered_list import OrderedList
from filewheel.timers.ordered_tree import OrderedTree
from filewheel.timers.scheduled_executor import ScheduledExecutor, ScheduledFuture
from filewheel.timers.scheme import Expire, Scheme, TickWheel
from filewheel.timers.simple_wheel import SimpleWheel
from filewheel.timers.timer import Timer, TimerTask
from filewheel.timers.unordered_list import UnorderedList
from filewheel.timers.wheel_event_loop import WheelEventLoop

__all__ = [
    "AsyncDelayQueue",
    "BinaryHeap",
    "DelayQueue",
    "Entry",
    "Expire",
    "Growing",
    "HashedOrdered",
    "HashedUnordered",
    "Hierarchical",
    "LoopTimeout",
    "LoopWheel",
    "OrderedList",
    "OrderedTree",
    "PeriodicTimeout",
    "ScheduledExecutor",
    "ScheduledFuture",
    "Scheme",
    "SimpleWheel",
    "Slot",
    "TickWheel",
    "TimeoutScope",
    "Timer",
    "TimerState",
    "TimerTask",
    "UnorderedList",
    "WheelEventLoop",
]
