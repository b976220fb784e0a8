"""Your own processors: one typed class that receives every session's judged messages, in order.

    from sessionlake.processors import Processor

    class Counted(Processor[Count]):
        state = Count                           # a dataclass or msgspec Struct
        output = {"messages": "bigint"}         # columns as Spark SQL types

        def on_message(self, state, message):
            state.messages += 1
            if message.type == "end":
                yield {"messages": state.messages}

Name the class in the configuration and start it with `sessionlake run processor NAME`. To try it in a unit test, use
`sessionlake.processors.testing`. `sessionlake.examples` has two complete processors.
"""

from sessionlake.processors.api import NEVER, Emitted, KeyedProcessor, Message, Processor, Record, Row, Session, Timer

__all__ = ["NEVER", "Emitted", "KeyedProcessor", "Message", "Processor", "Record", "Row", "Session", "Timer"]
