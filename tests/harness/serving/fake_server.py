"""A server that misbehaves on request: `python fake_server.py PORT [option=value ...]`. Stdlib, and the guard.

Options: ready_after_s, exit_after_s, code, ignore_term, child (a process of its own that ignores SIGTERM).
"""

import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from harness.orphans import die_with_parent

SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *arguments: object) -> None:
        return


def main() -> None:
    options = dict(pair.split("=") for pair in sys.argv[2:])
    die_with_parent()
    print("fake server starts", flush=True)
    if "ignore_term" in options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in options:
        subprocess.Popen([sys.executable, "-c", SLEEPER])
    if "exit_after_s" in options:
        threading.Timer(float(options["exit_after_s"]), lambda: os._exit(int(options.get("code", "3")))).start()
    time.sleep(float(options.get("ready_after_s", "0")))
    ThreadingHTTPServer.allow_reuse_address = True
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()


if __name__ == "__main__":
    main()
