#!/bin/sh
# Records evlbi's own traffic and TCP flows over emulated paths, as root:
#
#     record.sh EVLBI FOLDER [SCENE...]
#
# Captures (FOLDER/captures/NAME.pcap, headers only) and TCP traces (FOLDER/tcp/NAME.csv with what the kernels said, NAME.json with
# evlbi's result, NAME.messages.csv with arrivals of messages). `cargo xtask oracles --record` runs it and asks tshark.
set -eu
export E=$(realpath "$1") OUT=$(realpath "$2") EVLBI_TOKEN=t
shift 2
mkdir -p "$OUT/captures" "$OUT/tcp"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cd "$work"

# path NAME CELLS SCRIPT: runs SCRIPT on the first host of a path with a responder at the other end.
path() {
    cat > "oracle-$1.toml" <<END
[[host]]
name = "jive"
congestion = "reno"
buffer = "64MiB"
[[host]]
name = "manchester"
congestion = "reno"
buffer = "64MiB"
[[link]]
between = ["jive", "manchester"]
$2
END
    cat > script.sh <<'END'
far() { $E path exec manchester -- "$@"; }
# await COMMAND...: until it succeeds.
await() { n=0; until "$@"; do n=$((n+1)); [ $n -lt 600 ] || { echo "still waiting: $*" >&2; exit 1; }; sleep 0.1; done; }
dump="tcpdump -i wire -Z root -U --immediate-mode -s 128 -B 65536 --time-stamp-precision=nano"
# What comes back from a closed port comes after all that was sent before, in both captures.
has_echo() { tcpdump -r $1.pcap 'icmp[0] = 3 and icmp[30:2] = 9' 2> /dev/null | grep -q .; }
both_have_echo() { bash -c 'echo > /dev/udp/manchester/9'; has_echo $1-near && has_echo $1-far; }
has_ended() { [ -z "$(ss -tnH state fin-wait-1 state last-ack state closing)" ]; }
# taken NAME COMMAND...: captures at both hosts what a command sends; its result is NAME.json.
taken() {
    name=$1; shift
    (exec $dump -w $name-near.pcap 2> $name-near.txt) & near=$!
    far sh -c "echo \$\$ > far.pid; exec $dump -w $name-far.pcap 2> $name-far.txt" & far=$!
    await grep -qs listening $name-near.txt; await grep -qs listening $name-far.txt
    "$@" > $name.json
    await has_ended; await both_have_echo $name
    kill $near; far sh -c 'kill $(cat far.pid)'
    wait $near || true; wait $far || true
}
# traced NAME OPTIONS...: a TCP flow, sampled.
traced() {
    name=$1; shift
    $E probe tcp manchester:8620 --algorithm reno --samples $name.csv --json "$@" > $name.json || echo "$name: stopped" >&2
}
far $E respond 2> respond.txt &
await grep -q listening respond.txt
END
    echo "$3" >> script.sh
    "$E" path run "oracle-$1.toml" --json "$1.path.json" -- sh -e script.sh
}

captures() { for name in "$@"; do cp "$name.pcap" "$OUT/captures/"; done; }

# known NAME KEY=FILE:PLACE:FIELD,...: what the ends and their kernels counted themselves, as NAME.json.
known() {
    python3 - "$@" > "$OUT/captures/$1.json" <<'END'
import json, sys
known = {}
for part in sys.argv[2:]:
    key, _, place = part.partition("=")
    file, *place, fields = place.split(":")
    text = open(file).read()
    if file == "nstat.txt":
        found = {words[0]: int(words[1]) for line in text.splitlines() if len(words := line.split()) == 3}
    else:
        found = json.loads(text)
        for step in filter(None, place[0].split(".")):
            found = found[int(step) if step.isdigit() else step]
    known[key] = {field: found[field] for field in fields.split(",")}
print(json.dumps(known, indent=1))
END
}

# What diagnosis has of a flow: the samples of its sender's kernel, and the counts and times of both ends.
traces() {
    for name in "$@"; do
        grep -v ,receiver, "$name.csv" > "$OUT/tcp/$name.csv"
        if [ -e "$name.messages.csv" ]; then cp "$name.messages.csv" "$OUT/tcp/"; fi
        python3 - "$name.json" > "$OUT/tcp/$name.json" <<'END'
import json, sys
result = json.load(open(sys.argv[1]))
asked, flow = result["asked"], result["flows"][0]
fields = """algorithm ports segment path_mtu send_buffer receive_buffer bytes seconds segments sent_again needless timeouts blocked
    sender_cpu_seconds receiver_cpu_seconds errors""".split()
kept = {name: flow[name] for name in fields}
if flow["messages"]:
    kept["messages"] = {name: flow["messages"][name] for name in ("due", "sent", "shed", "received", "most_waiting", "blocked")}
print(json.dumps({"asked": asked, "flow": kept}, indent=1))
END
    done
}

# Losses and overtaking, seen at both ends, and what the sender's kernel counted.
lossy() {
    path lossy 'rtt = "15ms"
rate = "10M"
buffer = "256KiB"
forward = [{ loss = "2%" }, { reorder = "1%", distance = 4 }]' '
taken lossy $E probe tcp manchester:8620 --duration 1s --algorithm reno --json
nstat -asz > nstat.txt'
    captures lossy-near lossy-far
    known lossy flow=lossy.json:flows.0:segments,bytes kernel=nstat.txt:TcpRetransSegs,TcpExtTCPTimeouts,TcpExtTCPLossProbes,TcpExtTCPDSACKRecv
}

# What held connections back: the application at a rate, and in bursts; the receiver's buffer; the sender's; a full path.
held() {
    path held 'rtt = "15ms"
rate = "100M"
buffer = "300KiB"' '
probe() { name=$1; shift; taken $name $E probe tcp manchester:8620 --algorithm reno --json "$@"; }
probe constant --rate 4M --duration 2s
probe bursts --rate 4M --message 100k --duration 2200ms
probe receiver --receive-buffer 20k --duration 700ms'
    path long 'rtt = "30ms"
rate = "100M"
buffer = "300KiB"' 'taken sender $E probe tcp manchester:8620 --algorithm reno --json --buffer 15k --write 28960 --duration 2500ms'
    path full 'rtt = "15ms"
rate = "10M"
buffer = "100KiB"' 'taken path $E probe tcp manchester:8620 --algorithm reno --json --duration 1400ms'
    captures constant-near bursts-near receiver-near sender-near path-near
}

# VTP: losses, copies and overtaking; datagrams that the card is to cut.
streams() {
    path streams 'rtt = "10ms"
forward = [{ every = 50 }, { reorder = "2%", distance = 4 }, { duplicate = "2%" }]' '
far $E recv udp://0.0.0.0:2630 --to check --idle 10s --hold 10s --ring 64MiB --json > recv.json 2> recv.txt &
receiver=$!
await grep -q listening recv.txt
taken stream $E send pattern:1440 --to udp://manchester:2630 --rate 20M --duration 600ms --no-gso --json
taken train sh -c "$E send pattern:1440 --to udp://manchester:2631 --rate 20M --duration 300ms --burst 8 --json || true"
wait $receiver'
    captures stream-near stream-far train-near train-far
    known stream sent=stream.json::sent received=recv.json::unique,lost,duplicates,reordered
    known train sent=train.json::sent
}

# Probes, at both ends; some are lost.
probes() {
    path probes 'rtt = "4ms"
forward = [{ every = 100 }]' '
taken probe $E probe udp manchester:8620 --spacing 500us --size 300 --count 800 --both --bins 10us --json'
    captures probe-near probe-far
    known probe there=probe.json:points.0:sent,unique,lost,duplicates back=probe.json:points.1:sent,unique,lost,duplicates
}

# IPv6, one VLAN tag and two, as a switch's trunk port shows them, and fragments beside whole datagrams.
families() {
    path families 'rtt = "4ms"
forward = [{ every = 60 }]' '
end=[fd77::2]
flows() { $E probe tcp $1:8620 --duration 200ms --rate 4M --json > /dev/null; $E send pattern:1024 --to udp://$1:2630 --rate 4M --duration 150ms --json || true; }
taken ipv6 flows $end
taken plain flows manchester
fragments() { for end in manchester $end; do
    $E send pattern:5032 --mtu 8000 --to udp://$end:2630 --rate 4M --duration 200ms --json || true
    $E send pattern:1024 --to udp://$end:2631 --rate 4M --duration 60ms --json || true
done; }
taken fragments fragments'
    tag plain-far.pcap vlan-far.pcap 81000007
    tag plain-far.pcap tags-far.pcap 88a8000981000008
    captures ipv6-far vlan-far tags-far fragments-far
}

# tag FROM TO TAGS: the same frames with tags behind their addresses.
tag() {
    python3 - "$@" <<'END'
import struct, sys
capture, tags = open(sys.argv[1], "rb"), bytes.fromhex(sys.argv[3])
out = open(sys.argv[2], "wb")
out.write(capture.read(24))
while head := capture.read(16):
    second, nanos, captured, length = struct.unpack("<IIII", head)
    frame = capture.read(captured)
    out.write(struct.pack("<IIII", second, nanos, captured + len(tags), length + len(tags)))
    out.write(frame[:12] + tags + frame[12:])
END
}

# TCP flows, each with something else that limits it.
flows() {
    open='rtt = "20ms"
rate = "100M"
buffer = "1MiB"'
    path flows "$open" '
traced application --rate 5M --duration 2s --sample 20ms --records application.messages.csv --limit 500
traced receiver --receive-buffer 60k --duration 2s --sample 20ms
traced buffer --buffer 20k --write 4k --duration 2s --sample 20ms
tc qdisc add dev wire root tbf rate 20mbit burst 32k limit 8m
traced host --duration 2s --sample 20ms'
    path lossy-flow "$open"'
forward = [{ loss = "1%" }]' 'traced window --duration 3s --sample 20ms'
    path full-flow 'rtt = "20ms"
rate = "20M"
buffer = "100KiB"' 'traced path --duration 4s --sample 20ms'
    path burst-flow 'rtt = "17ms"
rate = "50M"
buffer = "125KiB"' 'traced burst --duration 10s --sample 50ms --background 35M --background-at 5s --background-for 1s'
    path black-hole 'rtt = "2ms"
forward = [{ mtu = 1300, tells = false }]' 'sysctl -qw net.ipv4.tcp_mtu_probing=0
traced black-hole --duration 3s --sample 100ms'
    product='rtt = "15ms"
rate = "100M"
buffer = "1MiB"
forward = [{ lose_at = ["3s", "3500ms"] }]'
    path product "$product" 'traced product --rate 50M --duration 5s --sample 20ms --buffer 0.25bdp --records product.messages.csv --limit 500'
    path shedding "$product" 'traced shedding --rate 50M --duration 5s --sample 20ms --buffer 0.25bdp --full shed --records shedding.messages.csv --limit 500'
    traces application receiver buffer host window path burst black-hole product shedding
}

{ uname -srm; tcpdump --version 2>&1 | head -2; "$E" --version; } > "$OUT/recorded.txt"
if [ $# = 0 ]; then set -- lossy held streams probes families flows; fi
for scene in "$@"; do
    echo "$scene" >&2
    $scene
done
