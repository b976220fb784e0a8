"""Processors of your own: one typed class that is given every session's judged messages, in order.

    from sessionlake.processors import Processor

    class Counted(Processor[Count]):
        state = Count                           # a dataclass or msgspec Struct
        output = {"messages": "bigint"}         # columns as Spark SQL types

        def on_message(self, state, message):
            state.messages += 1
            if message.type == "end":
                yield {"messages": state.messages}

Named in the configuration it runs by `sessionlake run processor NAME`; `sessionlake.processors.testing` runs it in a
unit test. `sessionlake.examples` has two whole ones.
"""

from sessionlake.processors.api import NEVER, Emitted, KeyedProcessor, Message, Processor, Record, Row, Session, Timer

__all__ = ["NEVER", "Emitted", "KeyedProcessor", "Message", "Processor", "Record", "Row", "Session", "Timer"]
