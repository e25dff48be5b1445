#!/usr/bin/env python3
"""Read a SWIN file (visibilities of the DiFX correlator) and print it as JSON, one record per line.

Usage: swin.py FILE CHANNELS

Little-endian, unpadded; records follow each other to the end of the file.
  byte  type      content
     0  u32       sync word 0xFF00FF00
     4  i32       header version, 1
     8  i32       baseline: 256*a + b, antennas counted from 1
    12  i32       modified Julian date
    16  f64       seconds of that day, at mid-integration
    24  3 x i32   indices of configuration, source, frequency
    36  2 chars   polarisation pair
    38  i32       pulsar bin
    42  f64       data weight
    50  3 x f64   u, v, w in metres
    74  CHANNELS x (f32, f32): real and imaginary part of each channel
"""
import json
import struct
import sys

HEADER = struct.Struct("<Iiiidiii2sid3d")
SYNC, VERSION = 0xFF00FF00, 1


def read_records(data, channels):
    body = struct.Struct(f"<{2 * channels}f")
    size = HEADER.size + body.size
    for start in range(0, len(data), size):
        left = len(data) - start
        if left < size:
            raise ValueError(f"incomplete record at byte {start}: {left} bytes left of {size}")
        (sync, version, baseline, mjd, seconds, configuration, source, frequency,
         polarisations, pulsar_bin, weight, *uvw) = HEADER.unpack_from(data, start)
        if sync != SYNC:
            raise ValueError(f"wrong sync word 0x{sync:08X} at byte {start}, not 0x{SYNC:08X}")
        if version != VERSION:
            raise ValueError(f"wrong header version {version} at byte {start + 4}, not {VERSION}")
        values = body.unpack_from(data, start + HEADER.size)
        yield {"baseline": divmod(baseline, 256), "mjd": mjd, "seconds": seconds,
               "configuration": configuration, "source": source, "frequency": frequency,
               "polarisations": polarisations.decode("latin-1"), "bin": pulsar_bin,
               "weight": weight, "uvw": uvw, "channels": list(zip(values[::2], values[1::2]))}


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].isdecimal() or int(sys.argv[2]) == 0:
        sys.exit(__doc__)
    try:
        with open(sys.argv[1], "rb") as file:
            lines = [json.dumps(record) for record in read_records(file.read(), int(sys.argv[2]))]
    except (OSError, ValueError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
    print("[\n" + ",\n".join(lines) + "\n]")
