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
    """The other side has ended, or closed the channel."""


class MessageChannel:
    """One end of a channel.

    Args:
        end: a connected socket.
        alarm: at the tests' end, a socket that becomes readable once the answer's process has ended, since processes it
            started may keep its end open.
    """

    def __init__(self, end: socket.socket, alarm: socket.socket | None = None) -> None:
        self._end = end
        self._alarm = alarm

    def send(self, message: Any) -> None:
        """Sends one message.

        Raises:
            NotEncodable: it cannot be written as JSON.
            ChannelClosed: the other side is gone.
        """
        data = dumps(message)
        try:
            self._end.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> Any:
        """The next message.

        Raises:
            Malformed: it is not a message.
            ChannelClosed: there are no more.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if self._alarm is not None and length > MAX_MESSAGE_BYTES:
            raise Malformed(f"a message has more than {MAX_MESSAGE_BYTES} bytes")
        return loads(self._read(length))

    def close(self) -> None:
        """Closes this end."""
        self._end.close()

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            if self._alarm is not None:
                ready = select.select([self._end, self._alarm], [], [])[0]
                if self._end not in ready:
                    raise ChannelClosed
            try:
                chunk = self._end.recv(min(length - len(data), 1 << 20))
            except OSError as error:
                raise ChannelClosed from error
            if not chunk:
                raise ChannelClosed
            data += chunk
        return bytes(data)
