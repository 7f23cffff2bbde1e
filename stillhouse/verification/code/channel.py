"""Messages over a socket: a length of four bytes, then JSON."""

import select
import socket
import struct
from typing import Any, Final

from stillhouse.verification.code.wire import Malformed, dumps, loads

MAX_MESSAGE_BYTES: Final = 16 << 20
"""Size of one message from the answer, as JSON."""

_LENGTH: Final = struct.Struct(">I")


class ChannelClosed(Exception):
    """The other side has ended, or closed the line."""


class MessageChannel:
    """One end of a line.

    Args:
        end: a connected socket.
        alarm: the end at the tests': a socket that can be read once the answer's process has ended, since others may
            hold its end of the line open.
    """

    def __init__(self, end: socket.socket, alarm: socket.socket | None = None) -> None:
        self._end = end
        self._alarm = alarm

    def send(self, message: Any) -> None:
        """Sends one message.

        Raises:
            NotEncodable: it cannot be written as JSON.
            ChannelClosed: nobody takes it.
        """
        data = dumps(message)
        try:
            self._end.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> Any:
        """The next message.

        Raises:
            Malformed: it is none.
            ChannelClosed: there are no more.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if self._alarm is not None and length > MAX_MESSAGE_BYTES:
            raise Malformed(f"a message has more than {MAX_MESSAGE_BYTES} bytes")
        return loads(self._read(length))

    def close(self) -> None:
        """Hangs up."""
        self._end.close()

    def _read(self, length: int) -> bytes:
        got = bytearray()
        while len(got) < length:
            if self._alarm is not None:
                ready = select.select([self._end, self._alarm], [], [])[0]
                if self._end not in ready:
                    raise ChannelClosed
            try:
                part = self._end.recv(min(length - len(got), 1 << 20))
            except OSError as error:
                raise ChannelClosed from error
            if not part:
                raise ChannelClosed
            got += part
        return bytes(got)
