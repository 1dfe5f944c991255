"""A small client of debugpy's adapter, which speaks to it as VS Code does."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.environment import without_outer_run

_PATIENCE = 180
"""Seconds for a message; the processes of a session import torch one after the other."""

Message = dict[str, Any]


class Client:
    """One session of the debug adapter protocol: that of pytest, or of a process beneath it."""

    def __init__(self, reading: IO[bytes], writing: IO[bytes]) -> None:
        self._reading, self._writing = reading, writing
        self._requests = 0
        self._events: queue.Queue[Message] = queue.Queue()
        self._replies: queue.Queue[Message] = queue.Queue()
        self._known: dict[int, Message] = {}
        """Replies that were read, by request."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Let go of both ends, the other side of which is gone."""
        self._reader.join()
        self._reading.close()
        self._writing.close()

    def begin(self, command: str, arguments: Message, breakpoints: Mapping[Path, int]) -> None:
        """Initialize, launch or attach, and set breakpoints."""
        known = {"linesStartAt1": True, "pathFormat": "path"}
        self.ask("initialize", adapterID="debugpy", clientID="test", **known)
        begun = self._send(command, arguments)
        self.event("initialized")
        for path, line in breakpoints.items():
            source, lines = {"path": str(path)}, [{"line": line}]
            self.ask("setBreakpoints", source=source, breakpoints=lines)
        self.ask("configurationDone")
        self._reply(begun)

    def ask(self, command: str, **arguments: Any) -> Message:
        """The body of the reply to a request."""
        return self._reply(self._send(command, arguments))

    def event(self, *kinds: str) -> Message:
        """The next event of these kinds.

        Raises:
            AssertionError: none came in time.
        """
        while True:
            try:
                event = self._events.get(timeout=_PATIENCE)
            except queue.Empty:
                raise AssertionError(f"no event of {kinds} came") from None
            if event["event"] in kinds:
                return event

    def _send(self, command: str, arguments: Message) -> int:
        self._requests += 1
        content = {"seq": self._requests, "type": "request", "command": command}
        raw = json.dumps(content | {"arguments": arguments}).encode()
        self._writing.write(b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        self._writing.flush()
        return self._requests

    def _reply(self, number: int) -> Message:
        while number not in self._known:
            reply = self._replies.get(timeout=_PATIENCE)
            self._known[reply["request_seq"]] = reply
        assert self._known[number]["success"], self._known[number]
        body: Message = self._known[number].get("body", {})
        return body

    def _read(self) -> None:
        while header := self._reading.readline():
            length = int(header.partition(b":")[2])
            self._reading.readline()
            message = json.loads(self._reading.read(length))
            shown = self._events if message["type"] == "event" else self._replies
            shown.put(message)
        self._events.put({"event": "closed"})


class Session:
    """pytest, launched in the debugger, and every process beneath it."""

    def __init__(
        self, folder: Path, args: Sequence[str], env: Mapping[str, str], stops: Mapping[Path, int]
    ) -> None:
        clean = {k: v for k, v in without_outer_run().items() if not k.startswith("DDP_")}
        self._adapter = subprocess.Popen(
            [sys.executable, "-m", "debugpy.adapter"],
            env=clean | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._adapter.stdin is not None
        assert self._adapter.stdout is not None
        self._stops = stops
        self.output = ""
        self._threads: list[threading.Thread] = []
        self.stopped: queue.Queue[Client] = queue.Queue()
        """Sessions that have come to a breakpoint, the events of which were read."""
        self._main = Client(self._adapter.stdout, self._adapter.stdin)
        launch = {
            "module": "pytest",
            "args": list(args),
            "cwd": str(folder),
            "env": dict(env),
            "console": "internalConsole",
            "subProcess": True,
            "python": [sys.executable],
        }
        self._main.begin("launch", launch, stops)

    def follow(self) -> int:
        """Attach to processes as they come, until pytest has ended; its exit code."""
        while True:
            event = self._main.event("debugpyAttach", "output", "exited", "closed")
            body = event.get("body", {})
            if event["event"] == "debugpyAttach":
                self._follow_in_thread(body)
            elif event["event"] == "output":
                self.output += body["output"]
            else:
                code: int = body.get("exitCode", -1)
                return code

    def end(self) -> None:
        """End the adapter, and with it what it has launched."""
        self._adapter.kill()
        self._adapter.wait()
        self._main.close()
        for thread in self._threads:
            thread.join(_PATIENCE)

    def _attach(self, place: Message) -> None:
        connect = place.pop("connect")
        connection = socket.create_connection((connect["host"], connect["port"]))
        file = connection.makefile("rwb")
        client = Client(file, file)
        client.begin("attach", place, self._stops)
        while True:
            event = client.event("stopped", "debugpyAttach", "terminated", "closed")
            if event["event"] == "stopped":
                self.stopped.put(client)
            elif event["event"] == "debugpyAttach":
                self._follow_in_thread(event["body"])
            else:
                break
        with contextlib.suppress(OSError):  # the other side was faster
            connection.shutdown(socket.SHUT_RDWR)
        client.close()
        connection.close()

    def _follow_in_thread(self, place: Message) -> None:
        thread = threading.Thread(target=self._attach, args=(place,), daemon=True)
        self._threads.append(thread)
        thread.start()
