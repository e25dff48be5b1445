"""Decodes samples with `baseband`, for comparison.

    baseband_samples.py frames BITS FILE OUT           every frame of a VDIF or Mark 5B file, in file order
    baseband_samples.py payload CODING BITS FILE OUT   bytes that are a payload of coding vdif, mark5b or edv_ab
    baseband_samples.py stream FILE OUT                a VDIF file from start to end, in order of time

Decoded components go to OUT as 32-bit floats in native order: time, thread, channel, real and imaginary.
`stream` prints as JSON what it found: start and stop (seconds since 1970), sample_rate, threads, channels, complex.
"""

import json
import os
import sys

import astropy.units as u
import numpy as np
from baseband import mark5b, vdif


def write(out, data):
    data = np.ascontiguousarray(data)
    assert data.dtype in (np.float32, np.complex64)
    out.write(data.view(np.float32).tobytes())


def frames(bits, path, out):
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        while file.tell() < size:
            write(out, payload(file, bits, path.endswith(".m5b")).data)


def payload(file, bits, is_mark5b):
    if is_mark5b:
        mark5b.Mark5BHeader.fromfile(file, kday=56000)
        return mark5b.Mark5BPayload.fromfile(file, sample_shape=(8,), bps=bits)
    # The headers of the corrupted sample fail the checks of baseband.
    header = vdif.VDIFHeader.fromfile(file, verify=False)
    words = np.fromfile(file, "<u4", header.payload_nbytes // 4)
    shape = (header.nchan,)
    return vdif.VDIFPayload(words, sample_shape=shape, bps=bits, complex_data=header.complex_data)


def raw(coding, bits, path, out):
    words = np.fromfile(path, "<u4")
    if coding == "vdif":
        found = vdif.VDIFPayload(words, bps=bits)
    elif coding == "mark5b":
        found = mark5b.Mark5BPayload(words, sample_shape=(1,), bps=bits)
    else:
        header = vdif.VDIFHeader.fromvalues(
            edv=0xAB, bps=bits, nchan=1, complex_data=False, frame_length=1254, verify=False
        )
        found = vdif.VDIFPayload(words, header)
    write(out, found.data)


def stream(path, out):
    with vdif.open(path, "rs", squeeze=False) as file:
        threads, channels = file.sample_shape
        found = {
            "start": file.start_time.unix,
            "stop": file.stop_time.unix,
            "sample_rate": file.sample_rate.to_value(u.Hz),
            "threads": threads,
            "channels": channels,
            "complex": file.complex_data,
        }
        write(out, file.read())
    json.dump(found, sys.stdout)


def main(mode, *arguments):
    *arguments, out = arguments
    with open(out, "wb") as out:
        if mode == "frames":
            bits, path = arguments
            frames(int(bits), path, out)
        elif mode == "payload":
            coding, bits, path = arguments
            raw(coding, int(bits), path, out)
        else:
            stream(*arguments, out)


main(*sys.argv[1:])
