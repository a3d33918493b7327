#!/usr/bin/env python3
"""Puts `blockgtq serve` under load and writes what it shows to bench/results/server.json.

  bench/server_load.py --binary build/blockgtq -m smollm2-135m -t 2 -o bench/results/server.json
  bench/server_load.py --binary BINARY --model-file MODEL.gguf --short    # seconds; what the tests run

soak        --streams clients for --seconds, each sending one greedy request after the other; some leave in the
            middle. Every text is compared with what the request gets when it is alone (on a GPU a matrix product
            may round differently in other company: of texts that differ, the difference in log probability of the
            two likeliest tokens where they part), and the server's resident size is read once a second.
throughput  tokens a second of 1 and of 16 streams that begin together, after short and after long prompts.
prefix      time to the first token of a prompt that is new, and of one whose first 2,000 tokens were seen before.
peer        the same batches in llama.cpp (C API of llama-cpp-python, without HTTP), where --llama-python names a
            Python that has it. Not its server: that answers one request at a time (a lock around the model), so that
            16 streams are 16 turns there, and llama.cpp's own server is in no package that comes built.
The client is this one thread over loopback, on the server's cores. Standard library only.
"""
import argparse
import atexit
import json
import os
import pathlib
import random
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import results

WORDS = ("time river stone light house garden winter music letter window forest silver morning paper bridge ocean "
         "candle mountain village doctor engine number story market island circle summer travel coffee").split()

CASES = ((8, 256), (700, 128))       # words of a prompt, new tokens
PEER_CASES = ((9, 256), (701, 128))  # the same in tokens


class Server:
    def __init__(self, arguments, model, *options):
        self.log = tempfile.TemporaryFile("w+")
        command = [str(arguments.binary), "serve", "-m", str(model), "--device", arguments.device, "-t",
                   str(arguments.threads), "--port", "0", *options]
        self.command = command
        self.process = subprocess.Popen(command, stderr=self.log, stdout=subprocess.DEVNULL)
        atexit.register(self.process.kill)  # where this program ends early
        deadline = time.time() + 300
        while True:
            self.log.seek(0)
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.log.read())
            if found:
                self.port = int(found[1])
                return
            if time.time() > deadline or self.process.poll() is not None:
                self.log.seek(0)
                sys.exit("the server did not start: " + self.log.read())
            time.sleep(0.02)

    def resident_kib(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1])

    def metrics(self):
        answer = run_all(self.port, [b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"])[0]
        return {name: float(value) for name, value in re.findall(r"^blockgtq_(\S+) (\S+)$", answer.body().decode(), re.M)}

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(timeout=120) != 0:
            sys.exit(f"the server ended with status {self.process.returncode}")


class Client:
    """One request on a connection of its own; what comes back is kept and looked at afterwards."""

    def __init__(self, port, data, leave_after=None):
        self.data, self.leave_after = data, leave_after
        self.received = bytearray()
        self.arrivals = []  # (time, bytes so far)
        self.first = self.end = None
        self.left = False
        self.start = time.perf_counter()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(data)

    def read(self):
        """What has arrived. True at the end."""
        part = self.socket.recv(65536)
        self.received += part
        self.arrivals.append((time.perf_counter(), len(self.received)))
        if self.first is None and b"data: {" in self.received:
            self.first = time.perf_counter()
        self.left = self.leave_after is not None and self.first is not None and len(self.received) > self.leave_after
        if part and not self.left:
            return False
        self.end = time.perf_counter()
        self.socket.close()
        return True

    def events_between(self, start, end):
        """Tokens that arrived from start to end, by the events' beginnings."""
        before = max((size for at, size in self.arrivals if at <= start), default=0)
        until = max((size for at, size in self.arrivals if at <= end), default=0)
        return self.received.count(b"data: {", before, until)

    def status(self):
        return int(self.received[9:12] or b"0")

    def body(self):
        head, _, rest = bytes(self.received).partition(b"\r\n\r\n")
        if b"chunked" not in head:
            return rest
        parts = []
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            parts.append(rest[:int(size, 16)])
            rest = rest[int(size, 16) + 2:]
        return b"".join(parts)

    def answer(self):
        """The text and the usage; (None, {}) of a stream that is not whole."""
        frames = [frame[len("data: "):] for frame in self.body().decode().split("\n\n") if frame.startswith("data: ")]
        if self.status() != 200 or not frames or frames[-1] != "[DONE]":
            return None, {}
        events = [json.loads(frame) for frame in frames[:-1]]
        usage = next((event["usage"] for event in events if event.get("usage")), {})
        return "".join(event["choices"][0]["text"] for event in events if event.get("choices")), usage


def run(port, more, concurrent, tick=lambda: None):
    """Keeps `concurrent` clients busy with what more() gives (None: no more); yields each at its end."""
    selector = selectors.DefaultSelector()
    active, last_tick, ended = 0, time.time(), False
    while True:
        while not ended and active < concurrent:
            client = more()
            ended = client is None
            if client is not None:
                selector.register(client.socket, selectors.EVENT_READ, client)
                active += 1
        if active == 0:
            return
        for key, _ in selector.select(0.2):
            client = key.data
            descriptor = client.socket
            if client.read():
                selector.unregister(key.fd if descriptor.fileno() < 0 else descriptor)
                active -= 1
                yield client
        if time.time() - last_tick >= 1:
            last_tick = time.time()
            tick()


def run_all(port, requests, concurrent=None):
    """Every request, all at a time or as many as `concurrent`; the clients in the order of the requests."""
    clients = []

    def more():
        if len(clients) == len(requests):
            return None
        clients.append(Client(port, requests[len(clients)]))
        return clients[-1]

    for _ in run(port, more, concurrent or len(requests)):
        pass
    return clients


def request(prompt, tokens, stream=True, **more):
    streaming = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **streaming,
                       **more}).encode()
    return (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            .encode() + body)


def words(generator, count):
    return " ".join(generator.choice(WORDS) for _ in range(count))


def gap_where_texts_part(server, prompt, tokens, alone, text):
    """By how much log probability the model prefers its token over the next best where `text` leaves `alone`."""
    common = len(os.path.commonprefix([alone, text]))
    client = run_all(server.port, [request(prompt, tokens, stream=False, logprobs=2)])[0]
    logprobs = json.loads(client.body())["choices"][0]["logprobs"]
    end = 0
    for token, likeliest in zip(logprobs["tokens"], logprobs["top_logprobs"]):
        end += len(token)
        if end > common:
            ordered = sorted(likeliest.values(), reverse=True)
            return ordered[0] - ordered[-1]  # 0 where both have one text
    return 0.0  # they part behind the last token: in how the bytes of one character were cut


def soak(server, streams, seconds, warm_up, requests_count, longest):
    generator = random.Random(1)
    lengths = [generator.choice((2, longest // 30, longest // 10, longest // 3, longest)) for _ in range(requests_count)]
    asked = [(f"{i} " + words(generator, n), generator.randint(8, 96)) for i, n in enumerate(lengths)]
    requests = [request(prompt, tokens) for prompt, tokens in asked]
    clients = run_all(server.port, requests, 1)
    alone = [client.answer()[0] for client in clients]
    if None in alone:
        sys.exit("a request failed that ran alone: " + clients[alone.index(None)].body().decode())

    counts = {"requests": 0, "left_in_the_middle": 0, "failed": 0, "different": 0, "tokens": 0}
    resident, others = [], set()

    def phase(duration, record):
        begun = time.time()
        which = {}

        def more():
            if time.time() - begun > duration:
                return None
            index = generator.randrange(len(requests))
            leave = generator.randint(200, 4000) if generator.random() < 0.1 else None
            client = Client(server.port, requests[index], leave)
            which[id(client)] = index
            return client

        def tick():
            if record:
                resident.append((round(time.time() - begun, 1), server.resident_kib()))

        for client in run(server.port, more, streams, tick):
            index = which.pop(id(client))
            counts["requests"] += 1
            if client.left:
                counts["left_in_the_middle"] += 1
                continue
            text, usage = client.answer()
            counts["failed"] += text is None
            if text is not None and text != alone[index]:
                counts["different"] += 1
                others.add((index, text))
            counts["tokens"] += usage.get("completion_tokens", 0)
        time.sleep(0.5)
        return server.resident_kib(), time.time() - begun

    idle_before, _ = phase(warm_up, False)
    counts = dict.fromkeys(counts, 0)
    idle_after, took = phase(seconds, True)
    half = [kib for _, kib in resident[len(resident) // 2:]]
    metrics = server.metrics()
    gaps = [gap_where_texts_part(server, *asked[index], alone[index], text) for index, text in sorted(others)]
    return {
        "streams": streams, "seconds": seconds, "warm_up_seconds": warm_up, **counts,
        "largest_gap_where_texts_part": round(max(gaps), 4) if gaps else None,
        "tokens_per_second": round(counts["tokens"] / took, 1),
        "resident_mib_idle_before": round(idle_before / 1024, 1), "resident_mib_idle_after": round(idle_after / 1024, 1),
        "resident_mib_highest_second_half": round(max(half) / 1024, 1),
        "resident_mib_over_time": [[t, round(kib / 1024, 1)] for t, kib in resident[::max(1, len(resident) // 24)]],
        "preemptions": metrics["preemptions_total"], "failed_in_the_engine": metrics["requests_failed_total"],
        "running_afterwards": metrics["requests_running"],
    }


def throughput_round(server, requests):
    """Tokens a second from when every stream has begun until the first ends."""
    clients = run_all(server.port, requests)
    if any(client.answer()[0] is None for client in clients):
        sys.exit("a stream failed")
    start, end = max(client.first for client in clients), min(client.end for client in clients)
    return sum(client.events_between(start, end) for client in clients) / (end - start)


def throughput(server, streams, cases, rounds):
    generator = random.Random(2)
    rows = []
    for prompt_words, tokens in cases:
        prompts = [f"{i} " + words(generator, prompt_words) for i in range(streams)]
        # Once before, so that the prefix cache has the prompts and all streams begin together.
        used = [client.answer()[1] for client in run_all(server.port, [request(prompt, 8) for prompt in prompts])]
        requests = [request(prompt, tokens) for prompt in prompts]
        one, many = [], []
        for _ in range(rounds):
            one.append(throughput_round(server, requests[:1]))
            many.append(throughput_round(server, requests))
        row = {"prompt_tokens": used[0]["prompt_tokens"], "new_tokens": tokens, "streams": streams,
               "tokens_per_second_one": [round(x, 1) for x in one],
               "tokens_per_second_many": [round(x, 1) for x in many],
               "ratio": round(statistics.median(many) / statistics.median(one), 2)}
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def prefix(server, prompt_words, rounds):
    generator = random.Random(3)
    cold, warm, cached = [], [], []
    for _ in range(rounds):
        shared = words(generator, prompt_words)
        for times in (cold, warm):
            client = run_all(server.port, [request(shared + " " + words(generator, 16), 4)])[0]
            times.append(1000 * (client.first - client.start))
            usage = client.answer()[1]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    return {"prompt_tokens": usage["prompt_tokens"], "cached_tokens": cached[-1],
            "first_token_ms_new": [round(x, 1) for x in cold], "first_token_ms_seen": [round(x, 1) for x in warm],
            "ratio": round(statistics.median(cold) / statistics.median(warm), 1)}


def peer_here(model, threads, streams, cases, rounds):
    """llama.cpp's decoding of the same batches, printed as JSON. Run by a Python that has llama-cpp-python."""
    import ctypes

    import llama_cpp as lib
    silent = lib.llama_log_callback(lambda level, text, user: None)
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    lib.llama_backend_init()
    parameters = lib.llama_model_default_params()
    parameters.n_gpu_layers = 0
    loaded = lib.llama_model_load_from_file(str(model).encode(), parameters)
    vocabulary_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(loaded))
    generator, rows = random.Random(2), []
    for prompt, tokens in cases:
        options = lib.llama_context_default_params()
        options.n_ctx = streams * -(-(prompt + tokens + 8) // 256) * 256
        options.n_seq_max, options.n_batch, options.n_ubatch = streams, 512, 512
        options.n_threads = options.n_threads_batch = threads
        options.flash_attn_type, options.offload_kqv = 0, False
        context = lib.llama_init_from_model(loaded, options)
        batch = lib.llama_batch_init(512, 0, 1)

        def decode(entries):
            batch.n_tokens = len(entries)
            for i, (sequence, position, token, wanted) in enumerate(entries):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
                batch.seq_id[i][0] = sequence
            if lib.llama_decode(context, batch) != 0:
                sys.exit("llama_decode failed")
            lib.llama_synchronize(context)

        for sequence in range(streams):
            ids = [generator.randrange(1000, vocabulary_size) for _ in range(prompt)]
            for first in range(0, prompt, 512):
                part = ids[first:first + 512]
                decode([(sequence, first + i, token, first + i + 1 == prompt) for i, token in enumerate(part)])
        speed = {}
        for count in (1, streams) * rounds:
            start = time.perf_counter()
            for step in range(tokens):
                decode([(sequence, prompt + step, 1000 + step, True) for sequence in range(count)])
            speed.setdefault(count, []).append(round(count * tokens / (time.perf_counter() - start), 1))
            for sequence in range(count):
                lib.llama_memory_seq_rm(lib.llama_get_memory(context), sequence, prompt, -1)
        rows.append({"prompt_tokens": prompt, "new_tokens": tokens, "streams": streams,
                     "tokens_per_second_one": speed[1], "tokens_per_second_many": speed[streams],
                     "ratio": round(statistics.median(speed[streams]) / statistics.median(speed[1]), 2)})
        lib.llama_free(context)
    print(json.dumps({"engine": f"llama.cpp, llama-cpp-python {lib.__version__}, f16 cache; without HTTP, sampling and text",
                      "rows": rows}))


def main():
    if sys.argv[1:2] == ["--peer"]:  # as main starts itself, below
        model, threads, streams, cases, rounds = json.loads(sys.argv[2])
        return peer_here(model, threads, streams, cases, rounds)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("-m", "--model", choices=results.MODEL_FILES, default="smollm2-135m")
    parser.add_argument("--model-file", type=pathlib.Path, help="a GGUF file instead of -m")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="of the server; on a GPU a text may depend on its company")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default="soak,throughput,prefix,peer")
    parser.add_argument("--llama-python", help="a Python with llama-cpp-python, for the peer")
    parser.add_argument("--short", action="store_true", help="a few seconds; only whether answers are right")
    parser.add_argument("-o", "--out", type=pathlib.Path)
    arguments = parser.parse_args()
    model = arguments.model_file or results.model_path(arguments.model)
    parts = arguments.parts.split(",")
    result = {**results.header(), "model": model.name, "threads": arguments.threads,
              "nice": os.nice(0)}

    def save():
        if arguments.out:
            results.write(arguments.out, result)

    if arguments.short:
        server = Server(arguments, model, "--np", "32", "--cache-tokens", "4096", "--recipe", "fp16")
        result["soak"] = soak(server, 32, 2, 0.5, 16, 30)
        server.stop()
        print(json.dumps(result["soak"]))
        sys.exit(result["soak"]["failed"] + result["soak"]["different"] > 0)

    if "soak" in parts:
        server = Server(arguments, model, "--np", str(arguments.streams))
        result["soak"] = soak(server, arguments.streams, arguments.seconds, 15, 64, 400)
        result["soak"]["command"] = " ".join(server.command[1:2] + server.command[4:])
        server.stop()
        print(json.dumps(result["soak"]), file=sys.stderr, flush=True)
    save()
    if "throughput" in parts:
        server = Server(arguments, model)
        result["throughput"] = throughput(server, 16, CASES, arguments.rounds)
        server.stop()
    save()
    if "prefix" in parts:
        server = Server(arguments, model)
        result["prefix"] = prefix(server, 2000, arguments.rounds)
        server.stop()
        print(json.dumps(result["prefix"]), file=sys.stderr, flush=True)
    save()
    if "peer" in parts and arguments.llama_python:
        with tempfile.TemporaryDirectory() as folder:
            shim = os.path.join(folder, "refuse_amx.so")  # as bench/llama_cpp_speed.py says
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(results.ROOT / "bench/peers/refuse_amx.c"), "-o", shim,
                            "-ldl"], check=True)
            task = json.dumps([str(model), arguments.threads, 16, PEER_CASES, arguments.rounds])
            done = subprocess.run([arguments.llama_python, __file__, "--peer", task], stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "LD_PRELOAD": shim}, check=True)
        result["peer"] = json.loads(done.stdout)
        print(done.stdout, file=sys.stderr, flush=True)
    save()


if __name__ == "__main__":
    main()
