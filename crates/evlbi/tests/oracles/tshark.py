"""Asks tshark about a capture and prints what it says as JSON.

    tshark.py CAPTURE

Connections and streams are in the order of their first packet, and so are the two ends of a connection. Times are in nanoseconds.
"""

import json
import subprocess
import sys

# Events, by the fields that tshark marks their packets with.
EVENTS = {
    "retransmission or out of order": ["retransmission", "out_of_order"],
    "lost segment": ["lost_segment"],
    "duplicate ack": ["duplicate_ack"],
    "window full": ["window_full"],
    "window update": ["window_update"],
    "zero window": ["zero_window"],
    "keep alive": ["keep_alive"],
    "ack lost segment": ["ack_lost_segment"],
}
MARKS = [f"tcp.analysis.{name}" for names in EVENTS.values() for name in names]
FIELDS = """frame.number frame.time_epoch frame.protocols ip.src ip.dst ipv6.src ipv6.dst ip.flags.mf ip.frag_offset ipv6.fraghdr.nxt
    tcp.stream tcp.srcport tcp.dstport tcp.len tcp.flags.syn tcp.window_size tcp.analysis.bytes_in_flight tcp.analysis.ack_rtt
    tcp.analysis.initial_rtt udp.srcport udp.dstport udp.length""".split()
# Width of the bins of times between packets of a stream.
BIN = 100_000


def tshark(*arguments):
    return subprocess.run(["tshark", *arguments], check=True, capture_output=True, text=True).stdout


def packets(path):
    # Fragments are not put together, so that each packet stands for itself.
    options = ["-n", "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"]
    fields = [word for name in FIELDS + MARKS for word in ("-e", name)]
    text = tshark("-r", path, *options, "-T", "fields", "-E", "occurrence=f", *fields)
    for line in text.splitlines():
        yield dict(zip(FIELDS + MARKS, line.split("\t")))


def nanos(seconds):
    whole, _, part = seconds.partition(".")
    return int(whole) * 10**9 + int(part.ljust(9, "0")[:9])


def end(packet, which, port):
    address = packet[f"ip.{which}"] or f"[{packet[f'ipv6.{which}']}]"
    return f"{address}:{packet[port]}"


def extent(values):
    return {"count": len(values), "min": min(values), "max": max(values), "sum": sum(values)} if values else None


def connection(packets):
    syn = next(packet for packet in packets if packet["tcp.flags.syn"] == "1")
    ends = [end(syn, "src", "tcp.srcport"), end(syn, "dst", "tcp.dstport")]
    ways = []
    for sender in ends:
        sent = [packet for packet in packets if end(packet, "src", "tcp.srcport") == sender]
        back = [packet for packet in packets if end(packet, "src", "tcp.srcport") != sender]
        some = lambda among, name, read=int: [read(packet[name]) for packet in among if packet[name]]
        # Windows are scaled once the handshake is over.
        windows = [packet for packet in back if packet["tcp.flags.syn"] != "1"]
        ways.append(
            {
                "bytes": sum(some(sent, "tcp.len")),
                "frames": sum(length > 0 for length in some(sent, "tcp.len")),
                "in flight": extent(some(sent, "tcp.analysis.bytes_in_flight")),
                "round trip": extent(some(back, "tcp.analysis.ack_rtt", nanos)),
                "window": extent(some(windows, "tcp.window_size")),
            }
        )
    initial = next((packet[name] for packet in packets if packet[name := "tcp.analysis.initial_rtt"]), None)
    return {"ends": ends, "packets": len(packets), "handshake": initial and nanos(initial), "ways": ways}


def stream(packets):
    times = [nanos(packet["frame.time_epoch"]) for packet in packets]
    bins = {}
    for before, after in zip(times, times[1:]):
        place = (after - before) // BIN * BIN
        bins[place] = bins.get(place, 0) + 1
    return {
        "ends": [end(packets[0], "src", "udp.srcport"), end(packets[0], "dst", "udp.dstport")],
        "packets": len(packets),
        # The length of UDP has its header in it.
        "bytes": sum(int(packet["udp.length"]) - 8 for packet in packets),
        "gaps": dict(sorted(bins.items())),
    }


def main(path):
    every = list(packets(path))
    connections, streams, fragments, others = {}, {}, 0, 0
    for packet in every:
        protocols = packet["frame.protocols"].split(":")
        if packet["ipv6.fraghdr.nxt"] or packet["ip.flags.mf"] == "1" or packet["ip.frag_offset"] not in ("", "0"):
            fragments += 1
        elif "icmp" in protocols or "icmpv6" in protocols:
            others += 1
        elif "tcp" in protocols:
            connections.setdefault(packet["tcp.stream"], []).append(packet)
        elif "udp" in protocols:
            key = end(packet, "src", "udp.srcport"), end(packet, "dst", "udp.dstport")
            streams.setdefault(key, []).append(packet)
        else:
            others += 1
    events = {
        event: [int(packet["frame.number"]) for packet in every if any(packet[f"tcp.analysis.{name}"] for name in names)]
        for event, names in EVENTS.items()
    }
    found = {
        "tshark": tshark("--version").splitlines()[0],
        "packets": len(every),
        "fragments": fragments,
        "neither TCP nor UDP": others,
        "events": events,
        "connections": [connection(packets) for packets in connections.values()],
        "streams": [stream(packets) for packets in streams.values()],
    }
    print(json.dumps(found, indent=1))


main(*sys.argv[1:])
