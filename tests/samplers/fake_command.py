"""``vllm serve`` as far as its keeper knows it: a process with a worker, files and a port, which starts at once.

``--fault`` says what goes wrong.
"""

import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.headers.get("Authorization") == f"Bearer {os.environ['VLLM_API_KEY']}"
        self.send_response(200 if self.path == "/health" or known else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Says nothing."""


def main():
    options = dict(argument.lstrip("-").split("=", 1) for argument in sys.argv[1:] if argument.startswith("--"))
    if options.get("fault") == "dies":
        print(
            "(APIServer pid=1) WARNING 11-28 16:15:07 [utils.py:255] This can cause errors like `OSError: [Errno 24]`",
            "ValueError: head size 24 is not supported",
            *(f"line {number}" for number in range(30)),
            sep="\n",
            flush=True,
        )
        sys.exit(3)
    if options.get("fault") == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        memory = SharedMemory(create=True, size=8)
        Path(options["tell"]).with_name("memory").write_text(memory.name)
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    (Path(os.environ["TMPDIR"]) / "socket").touch()
    if options.get("fault") == "hangs":
        time.sleep(1000)
    Path(options["tell"]).write_text(f"{os.getpid()} {worker.pid}")
    HTTPServer((options["host"], int(options["port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
