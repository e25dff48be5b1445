#!/usr/bin/env python3
"""A receiver of SafeUDP, version 1, written from docs/src/safeudp.md alone. It listens on loopback, pretends loss, and prints its accounts."""
import argparse, collections, hashlib, hmac, json, os, select, socket, struct, sys, time

NS = 10**9
DUE = NS // 10
LAST, MORE = 1, 2
STATES = ["start", "clear", "suspect", "overloaded", "congested", "shedding", "held", "trial", "breaker", "ended"]
HEADER = struct.Struct(">4sIQQQ")
BEAT = struct.Struct(">QQQQQQQQQIHBBH6s")
REPORT = struct.Struct(">QQQQQQQQQQQ8QQQH14s")
assert HEADER.size == 32 and HEADER.size + BEAT.size == 120 and HEADER.size + REPORT.size == 216


def read_key(path):
    raw = open(path, "rb").read()
    if len(raw) == 32:
        return raw
    return hashlib.pbkdf2_hmac("sha256", raw.strip(), b"SafeUDP", 600_000, 32)


def code(key, data):
    return hmac.digest(key, data, "sha256")[:16]


class Loss:
    """Pretended loss: a fraction, from half a second after the first datagram until the sender sheds."""
    def __init__(self, fraction):
        self.fraction, self.sum, self.dropped = fraction, 0.0, 0

    def drop(self, t, states):
        if t < 0.5 or "shedding" in states:
            return False
        self.sum += self.fraction
        if self.sum < 1:
            return False
        self.sum -= 1
        self.dropped += 1
        return True


class Receiver:
    def __init__(self, key, loss, rtt):
        self.key, self.loss, self.rtt = key, loss, rtt
        self.data, self.msgs = self.socks()
        self.known = False                   # whether the sender has heard this instance
        self.instance = int.from_bytes(os.urandom(8), "big") or 1
        self.ignored = collections.Counter()
        self.flow = self.peer = self.beat = None
        self.beat_no = self.beat_dep = self.beat_at = 0
        self.probe_no = self.probes = self.report_no = 0
        self.offered = self.declared = self.shed_said = self.not_sent = self.r = 0
        self.ended = self.final_sent = False
        self.shed_set = set()
        self.arrived, self.missing = set(), set()   # above covered; missed and not arrived since
        self.covered = self.missed = self.shed = self.highest = 0
        self.due = 0
        self.due_queue = collections.deque()  # (time, numbers below are due then)
        self.received = self.distinct = self.copies = self.reordered = self.late = 0
        self.bytes = self.marked = self.ect = 0
        self.last_report = self.last_loss = self.first_data = 0
        self.urgent = False
        self.runs, self.states = [], []

    def socks(self):
        while True:                          # until the port after a free one is free, too
            data = self.sock(0)
            try:
                return data, self.sock(data.getsockname()[1] + 1)
            except (OSError, OverflowError):
                data.close()

    @staticmethod
    def sock(port):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
        s.setsockopt(socket.IPPROTO_IP, 13, 1)   # IP_RECVTOS
        s.bind(("127.0.0.1", port))
        s.setblocking(False)
        return s

    def on_data(self, buf, anc, now):
        if not self.known or len(buf) < 8:
            return self.ignore("data without a flow")
        n = (int.from_bytes(buf[:8], "little") - self.first) % 2**64
        if n >= max(self.offered, self.highest) + (1 << 22) or (self.ended and n >= self.offered):
            return self.ignore("data out of range")
        if not self.first_data:
            self.first_data = now
        if self.loss.drop((now - self.first_data) / NS, self.states):
            return
        self.received += 1
        self.bytes += len(buf) - 8
        for level, kind, value in anc:
            if level == socket.IPPROTO_IP and kind == socket.IP_TOS:
                ecn = value[0] & 3
                self.ect += ecn in (1, 2)
                self.marked += ecn == 3
        if n in self.missing:
            self.missing.discard(n)
            self.late += 1
            self.distinct += 1
        elif n < self.covered or n in self.arrived:
            self.copies += 1
        else:
            self.arrived.add(n)
            self.distinct += 1
            if n + 1 < self.highest:
                self.reordered += 1
        if n >= self.highest:
            self.highest = n + 1
            self.add_due(now, n)              # numbers below n are due in 100 ms

    def add_due(self, now, limit):
        q = self.due_queue
        if limit > (q[-1][1] if q else self.due):
            q.append((now + DUE, limit))

    def advance(self, now):
        q = self.due_queue
        while q and q[0][0] <= now:
            self.due = q.popleft()[1]
        c = self.covered
        while True:
            if c in self.arrived:
                self.arrived.discard(c)
            elif c >= self.declared:
                break
            elif c in self.shed_set:
                self.shed += 1
            elif c < self.due:
                self.missed += 1
                self.missing.add(c)
                if now - self.last_loss > NS:
                    self.urgent = True
                self.last_loss = now
                if self.runs and self.runs[-1][0] + self.runs[-1][1] == c:
                    self.runs[-1][1] += 1
                else:
                    self.runs.append([c, 1])
            else:
                break
            c += 1
        self.covered = c

    def ignore(self, why):
        self.ignored[why] += 1

    def on_message(self, m, addr, now):
        if len(m) < 48:
            return self.ignore("length")
        name, flags, flow, number, dep = HEADER.unpack_from(m)
        if name == b"EVGP":
            if not hmac.compare_digest(m[32:48], code(self.key, m[:32])):
                return self.ignore("code")
            if flow != self.flow or not self.known:
                return self.ignore("flow")
            if number <= self.probe_no:
                return self.ignore("number")
            self.probe_no = number
            self.probes += 1
            self.peer = addr
            return
        if name != b"EVGB":
            return self.ignore("name")
        if len(m) < 136:
            return self.ignore("length")
        b = BEAT.unpack_from(m, 32)
        (inst, first, offered, declared, shed, not_sent, probes, bps, r, fraction, size, state, _, sets, _) = b
        if sets > 40 or len(m) != 120 + 24 * sets + 16:
            return self.ignore("length")
        if not hmac.compare_digest(m[-16:], code(self.key, m[:-16])):
            return self.ignore("code")
        if self.flow is not None and flow != self.flow:
            return self.ignore("flow")
        if number <= self.beat_no:
            return self.ignore("number")
        if inst not in (0, self.instance):
            return self.ignore("instance")
        ranges = [struct.unpack_from(">QQII", m, 120 + 24 * i) for i in range(sets)]
        bad = (declared > offered or shed + not_sent > offered or state > 9 or fraction > NS
               or any(e <= f or (s and not 0 < n <= s) for f, e, s, n in ranges)
               or any(x[1] > y[0] for x, y in zip(ranges, ranges[1:]))
               or any(e > declared for _, e, _, _ in ranges))
        if bad:
            return self.ignore("contradiction")
        if self.beat:
            o = self.beat
            if (first != o[1] or any(b[i] < o[i] for i in (2, 3, 4, 5, 6)) or (o[0] and not inst)
                    or self.ended and (offered != self.offered or not flags & LAST)):
                return self.ignore("goes back")
        else:
            self.flow, self.first = flow, first
        self.beat, self.beat_no, self.beat_dep, self.beat_at, self.peer = b, number, dep, now, addr
        self.offered, self.declared, self.shed_said, self.not_sent, self.r = offered, declared, shed, not_sent, r
        for f, e, s, n in ranges:
            if not s:
                self.shed_set.update(range(max(f, self.covered), e))
            else:
                k = f + max(0, (self.covered - f) // s) * s
                while k < e:
                    self.shed_set.update(range(max(k, self.covered), min(k + n, e)))
                    k += s
        if inst and not self.known:          # what was offered before is not counted
            self.known = True
            self.covered = self.highest = self.due = offered
        self.add_due(now, offered)
        name = STATES[state]
        t = (now - (self.first_data or now)) / NS
        if not self.states or self.states[-1] != name:
            self.states.append(name)
            print(f"{name} at {t:.2f} s, {bps / 1e6:.3f} Mbit/s, offered {offered}, R {r / 1e6:.3f} ms", file=sys.stderr, flush=True)
        if flags & LAST:
            self.ended = True

    def send_report(self, now):
        flags, runs = 0, self.runs[:64]
        if self.ended and self.covered >= self.offered:
            flags |= LAST
        if len(self.runs) > 64:
            flags |= MORE
        self.runs = []
        self.report_no += 1
        dep = time.monotonic_ns()
        hold = max(0, dep - self.beat_at - self.rtt)
        m = HEADER.pack(b"EVGR", flags, self.flow, self.report_no, dep) + REPORT.pack(
            self.instance, self.beat_no, self.beat_dep, self.beat_at, hold, self.covered, self.missed, 0, 0, self.shed,
            self.highest, self.received, self.distinct, self.copies, self.reordered, self.late, self.bytes,
            self.marked, self.ect, self.probe_no, self.probes, len(runs), bytes(14))
        m += b"".join(struct.pack(">QI", f, n) for f, n in runs)
        self.msgs.sendto(m + code(self.key, m), self.peer)
        self.last_report, self.urgent = now, False
        if flags & LAST:
            self.final_sent = True

    def drain(self, s, handler):
        for _ in range(256):
            try:
                buf, anc, _, addr = s.recvmsg(65536, 64)
            except BlockingIOError:
                return
            handler(buf, anc, addr, time.monotonic_ns())

    def run(self, limit):
        begin = time.monotonic_ns()
        while True:
            ready, _, _ = select.select([self.data, self.msgs], [], [], 0.002)
            ended = self.ended
            if self.msgs in ready:
                self.drain(self.msgs, lambda b, c, a, t: self.on_message(b, a, t))
            if self.data in ready:
                self.drain(self.data, lambda b, c, a, t: self.on_data(b, c, t))
            now = time.monotonic_ns()
            if now - begin > limit * NS:
                print("time limit reached", file=sys.stderr)
                break
            if self.flow is None:
                continue
            self.advance(now)
            since = now - self.last_report
            done = self.ended and self.covered >= self.offered
            if (since >= max(DUE, self.r) or (self.urgent and since >= self.r) or (done and not self.final_sent)
                    or (self.ended and not ended)):
                if self.rtt and now - self.beat_at < self.rtt and not done and since < 2 * DUE:
                    continue                  # with a pretended delay: not before it has passed
                self.send_report(now)
            if now - self.beat_at > (1 if self.final_sent else 20) * NS:
                break
        return self.result()

    def result(self):
        sent = self.offered - self.shed - self.not_sent
        return {
            "complete": self.final_sent,
            "accounts": {"offered": self.offered, "sent": sent, "shed": self.shed, "not_sent": self.not_sent,
                         "unique": self.distinct, "lost": sent - self.distinct},
            "shed_as_declared": self.shed == self.shed_said,
            "states": self.states, "ignored": dict(self.ignored),
            "pretended_lost": self.loss.dropped, "missed": self.missed, "late": self.late, "copies": self.copies,
            "reports": self.report_no, "beats": self.beat_no, "probes": self.probes,
        }


def main():
    a = argparse.ArgumentParser()
    a.add_argument("keyfile")
    a.add_argument("--loss", type=float, default=0, help="pretended loss: a fraction, from clear until shedding")
    a.add_argument("--rtt", type=float, default=0, help="pretend this further round-trip time, in seconds")
    a.add_argument("--limit", type=float, default=300, help="stop after this many seconds in any case")
    a = a.parse_args()
    r = Receiver(read_key(a.keyfile), Loss(a.loss), int(a.rtt * NS))
    print(f"listening on 127.0.0.1:{r.data.getsockname()[1]}", file=sys.stderr, flush=True)
    print(json.dumps(r.run(a.limit)))


if __name__ == "__main__":
    v = HEADER.pack(b"EVGP", 0, 1, 2, 3)       # the vector of section 4.6
    assert code(b"\7" * 32, v).hex() == "05bb15c23561030ce71477b48fb4d03e"
    main()
