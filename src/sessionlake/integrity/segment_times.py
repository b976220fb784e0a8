"""The stream time at each message of a batch, from the stream times just before segments of consecutive offsets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sessionlake.integrity.cursor import NO_TIME
from sessionlake.protocol.types import Int64s


@dataclass(frozen=True)
class StreamTimesBeforeSegments:
    """The stream time just before each stretch. A stretch begins with a segment and ends where the next segment begins.

    Attributes:
        lane: For each stretch, the index of its topic-partition in the clock; ascending.
        first: First offset of each stretch; ascending within a lane.
        before: Stream time just before each stretch, ms. All three arrays are empty if it would change no stream time.
        silences: Stretches after silences, each from a silence to the end of its lane; `before` is the time after the
            silence. None if the batch has no silences.
    """

    lane: Int64s
    first: Int64s
    before: Int64s
    silences: StreamTimesBeforeSegments | None = None

    def compute_stream_time_of_each_message(
        self, partition_indices: Int64s, offsets: Int64s, segment_maxima: Int64s
    ) -> Int64s:
        """Returns the stream time at each message of the batch, ms.

        Args:
            segment_maxima: The highest timestamp in each message's segment up to the message, ms.
        """
        times, silences = segment_maxima, self.silences
        if len(self.first) and len(partition_indices):
            times = np.maximum(times, self._find_stream_times_before_segments(partition_indices, offsets))
        return (
            times
            if silences is None
            else silences.compute_stream_time_of_each_message(partition_indices, offsets, times)
        )

    def _find_stream_times_before_segments(self, partition_indices: Int64s, offsets: Int64s) -> Int64s:
        """Returns the stream time before the stretch of each message, ms; `NO_TIME` if the message is in no stretch."""
        stretches = len(self.first)
        # Sorted together, a message comes directly after the start of its stretch and the messages before it.
        is_message = np.repeat([False, True], [stretches, len(partition_indices)])
        order = np.lexsort((is_message, np.append(self.first, offsets), np.append(self.lane, partition_indices)))
        place = np.cumsum(~is_message[order]) - 1
        messages = is_message[order]
        stretch = np.empty(len(partition_indices), np.int64)
        stretch[order[messages] - stretches] = place[messages]
        return np.where((stretch >= 0) & (self.lane[stretch] == partition_indices), self.before[stretch], NO_TIME)


_EMPTY = np.zeros(0, np.int64)
NO_STRETCHES = StreamTimesBeforeSegments(_EMPTY, _EMPTY, _EMPTY)
