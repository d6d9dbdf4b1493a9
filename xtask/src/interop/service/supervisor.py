"""A stand-in for systemd: holds a socket, starts a server with it, and writes down what the server says.

supervisor.py SOCKET NOTIFY SAID PROGRAM [ARGUMENT]...   Commands come on standard input, a line each: start, reload, stop.
Each line of the server's messages goes to the file SAID, and `exit CODE` when it has ended.
"""

import os
import signal
import socket
import sys
import threading

path, notify, said = sys.argv[1:4]
command = sys.argv[4:]
lines = open(said, "w", encoding="utf-8")
listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listening.bind(path)
listening.listen(64)
messages = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
messages.bind(notify)
# Seconds; the server gives a sign of life in half of it.
WATCHDOG = 4


def say(line):
    lines.write(line + "\n")
    lines.flush()


def listen():
    while True:
        for line in messages.recv(65536).decode().splitlines():
            say(line)


def start():
    child = os.fork()
    if child:
        return child
    os.dup2(listening.fileno(), 3)
    os.set_inheritable(3, True)
    os.dup2(2, 1)
    os.environ.update(
        LISTEN_FDS="1",
        LISTEN_PID=str(os.getpid()),
        NOTIFY_SOCKET=notify,
        WATCHDOG_USEC=str(WATCHDOG * 1000000),
        WATCHDOG_PID=str(os.getpid()),
    )
    os.execvp(command[0], command)


threading.Thread(target=listen, daemon=True).start()
server = None
for line in sys.stdin:
    if line == "start\n":
        server = start()
    elif line == "reload\n":
        os.kill(server, signal.SIGHUP)
    elif line == "stop\n":
        os.kill(server, signal.SIGTERM)
        _, status = os.waitpid(server, 0)
        server = None
        say(f"exit {os.waitstatus_to_exitcode(status)}")
if server is not None:
    os.kill(server, signal.SIGKILL)
