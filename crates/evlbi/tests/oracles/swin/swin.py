"""Reads SWIN, the visibilities of DiFX, and prints them as JSON: one object a record.

    swin.py FILE CHANNELS

Written from the description of the format alone (DiFX user guide, appendix "DiFX output files"), and not from evlbi's reader:

    sync word              int32     0xFF00FF00
    header version         int32     1
    baseline number        int32     256 times the first antenna, plus the second; antennas count from 1
    modified Julian date   int32
    seconds                float64   of the day, at the middle of the integration
    configuration index    int32
    source index           int32
    frequency index        int32
    polarisation pair      char[2]
    pulsar bin             int32
    data weight            float64
    u, v, w                float64   in metres
    visibilities           2 x float32 for each channel: real, imaginary

All of it is little-endian and without padding. The number of channels is not in the file.
"""

import json
import struct
import sys

HEADER = struct.Struct("<IiiidiiiccidDDD".replace("D", "d"))
SYNC = 0xFF00FF00


def records(data, channels):
    spectrum = struct.Struct(f"<{2 * channels}f")
    size = HEADER.size + spectrum.size
    if len(data) % size:
        raise SystemExit(f"{len(data)} bytes are no whole number of records of {size} bytes")
    for at in range(0, len(data), size):
        sync, version, baseline, mjd, seconds, config, source, frequency, first, second, pulsar, weight, u, v, w = (
            HEADER.unpack_from(data, at)
        )
        if sync != SYNC or version != 1:
            raise SystemExit(f"at byte {at}: sync word {sync:08x}, version {version}")
        numbers = spectrum.unpack_from(data, at + HEADER.size)
        yield {
            "baseline": list(divmod(baseline, 256)),
            "mjd": mjd,
            "seconds": seconds,
            "configuration": config,
            "source": source,
            "frequency": frequency,
            "polarisations": (first + second).decode("ascii"),
            "bin": pulsar,
            "weight": weight,
            "uvw": [u, v, w],
            "channels": [list(pair) for pair in zip(numbers[::2], numbers[1::2])],
        }


def main(path, channels):
    with open(path, "rb") as file:
        found = list(records(file.read(), int(channels)))
    # A record a line, so that differences can be read.
    print("[\n" + ",\n".join(json.dumps(record) for record in found) + "\n]")


main(*sys.argv[1:])
