"""Prints as JSON what `baseband` reads in the headers of VDIF and Mark 5B files.

    baseband_headers.py samples          the recordings shipped with baseband
    baseband_headers.py FILE...          any files; times for RATE frames per second

Every header has the fields that baseband names, as integers, and in addition:
offset, rate (frames per second, from the header if it contains it), second (UTC,
Unix count, of the frame's second), nanos (since that second) and, for VDIF, leaps:
the leap seconds between the reference epoch and the frame, which baseband subtracts.
"""

import json
import os
import sys

import astropy.units as u
from astropy.time import Time
from baseband import data, mark5b, vdif
from baseband.mark5b.header import crc16

RATE = 1000
# Frames per second of the recordings whose headers do not contain it; the real ones where they are known.
SAMPLES = {
    data.SAMPLE_VDIF: 1600,
    data.SAMPLE_VLBI_VDIF: 1600,
    data.SAMPLE_MWA_VDIF: 10000,
    data.SAMPLE_AROCHIME_VDIF: 390625,
    data.SAMPLE_BPS1_VDIF: 8000,
    data.SAMPLE_DRAO_CORRUPT: 390625,
    data.SAMPLE_MARK5B: 6400,
}
# Within 500 days of every Mark 5B time that the tests use.
MARK5B_REFERENCE = Time("2014-06-13T00:00:00")


def headers(path, rate, verify):
    kind = mark5b if path.endswith(".m5b") else vdif
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        while (offset := file.tell()) < size:
            header = read(file, kind, verify)
            yield {"offset": offset, **fields(header, kind), **times(header, rate)}
            file.seek(offset + header.frame_nbytes)


def read(file, kind, verify):
    if kind is vdif:
        return vdif.VDIFHeader.fromfile(file, verify=verify)
    return mark5b.Mark5BHeader.fromfile(file, ref_time=MARK5B_REFERENCE, verify=verify)


def fields(header, kind):
    found = {key: int(header[key]) for key in header.keys()}
    if kind is mark5b or header.edv == 0xAB:
        code = (header["bcd_jday"] << 20 | header["bcd_seconds"]) << 16
        found["computed_crc"] = int(crc16(code | header["bcd_fraction"]))
    if kind is vdif:
        found["frame_nbytes"] = int(header.frame_nbytes)
        found["payload_nbytes"] = int(header.payload_nbytes)
        found["bps"] = int(header.bps)
        found["nchan"] = int(header.nchan)
        found["samples_per_frame"] = int(header.samples_per_frame)
        if "sampling_rate" in header.keys():
            found["sample_rate"] = round(header.sample_rate.to_value(u.Hz))
    return found


def times(header, rate):
    if "sampling_rate" in header.keys() and header["sampling_rate"]:
        rate = header.frame_rate.to_value(u.Hz)
        assert rate == round(rate)
    time = header.get_time(frame_rate=rate * u.Hz)
    whole = header.copy()
    whole.mutable = True
    whole["frame_nr"] = 0
    second = whole.get_time(frame_rate=rate * u.Hz)
    found = {
        "rate": round(rate),
        "second": unix(second),
        "nanos": round((time - second).to_value(u.ns)),
    }
    if hasattr(header, "ref_time"):
        counted = round((second - header.ref_time).to_value(u.s))
        found["leaps"] = counted - (unix(second) - unix(header.ref_time))
    return found


def unix(time):
    second = round(time.unix)
    assert abs(time.unix - second) < 1e-6
    return second


def main(arguments):
    # The corrupted sample fails the checks of baseband.
    samples = arguments == ["samples"]
    files = SAMPLES if samples else dict.fromkeys(arguments, RATE)
    found = [
        {"file": path, "headers": list(headers(path, rate, verify=not samples))}
        for path, rate in files.items()
    ]
    json.dump(found, sys.stdout)


main(sys.argv[1:])
