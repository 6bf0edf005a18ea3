"""Read data files with the maintained readers of their formats. Runs in the job's own Python, as its user.

library_readers.py passes this file to `python -c`. It reads one JSON object a line, {"path": ..., "reader": ...}, and
answers with one, {"state": ..., "text": ...}. States: "sound"; "broken"; "refused" (other libraries may accept the
file); "unavailable" (the library cannot read it for a reason of its own, such as a codec that is not installed);
"missing" (there is no such library). Python 3.6 syntax; imports nothing of slurmwrap.
"""

import json
import os
import sys

# Bytes of an HDF5 dataset that are read at once.
_SLAB = 8 << 20
# Words of messages about what a library cannot do, not about the file.
_OWN_LIMITS = (
    "not registered",
    "not available",
    "can't open directory",
    "not built",
    "not supported",
    "not implemented",
    "unsupported",
    "unimplemented",
    "decrypt",
    "encrypt",
    "unable to lock",
)


def read_image(path):
    """Decode the whole image."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    with Image.open(path) as image:
        image.load()


def read_parquet(path):
    """Decode all columns, and compare the checksums of the pages that have them."""
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path, page_checksum_verification=True)
    except TypeError:
        file = parquet.ParquetFile(path)
    for batch in file.iter_batches(batch_size=65536):
        batch.validate()


def read_arrow(path):
    """Read all record batches of a file or stream, and uncompress their buffers."""
    import pyarrow

    with pyarrow.OSFile(path, "rb") as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            reader = pyarrow.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                reader.get_batch(number).validate()
        else:
            for batch in pyarrow.ipc.open_stream(source):
                batch.validate()


def read_hdf5(path):
    """Read all datasets: this compares checksums and uncompresses. Links to other files are not followed."""
    os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")
    import h5py

    def visit(name, item):
        if not isinstance(item, h5py.Dataset) or item.shape is None or item.is_virtual or item.external:
            return
        if not item.shape or not item.size:
            item[()]
        elif item.chunks:
            for chunk in item.iter_chunks():
                item[chunk]
        else:
            row = max(1, item.dtype.itemsize * int(item.size // item.shape[0]))
            rows = max(1, _SLAB // row)
            for start in range(0, item.shape[0], rows):
                item[start : start + rows]

    with h5py.File(path, "r") as file:
        file.visititems(visit)


def read_audio(path):
    """Decode all samples, and compare their number with that of the header."""
    import soundfile

    with soundfile.SoundFile(path) as file:
        promised, count = file.frames, 0
        for block in file.blocks(blocksize=1 << 20, dtype="int16"):
            count += len(block)
    if count < promised:
        raise ValueError("decoding ends at sample %d of %d" % (count, promised))


def read_safetensors(path):
    """Read the header as the library does."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        file.keys()


def read_tfrecord(path):
    """Compare the checksums of all records."""
    checksum = _find_crc32c()
    if checksum is None:
        _read_with_tensorflow(path)
        return
    at = 0
    with open(path, "rb") as stream:
        while True:
            head = stream.read(12)
            if not head:
                return
            length = int.from_bytes(head[:8], "little")
            data, tail = stream.read(length), stream.read(4)
            crc = checksum(data)
            masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
            if len(data) < length or masked != int.from_bytes(tail, "little"):
                raise ValueError("wrong checksum in the record at byte %d" % at)
            at += 16 + length


def _find_crc32c():
    for name in ("google_crc32c", "crc32c"):
        try:
            module = __import__(name)
            return module.value if name == "google_crc32c" else module.crc32c
        except (ImportError, AttributeError):
            continue
    return None


def _read_with_tensorflow(path):
    os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TF_CPP_MIN_LOG_LEVEL"] = "", "3"
    import tensorflow

    try:
        tensorflow.data.TFRecordDataset(path).reduce(0, lambda count, record: count + 1)
    except tensorflow.errors.DataLossError as error:
        raise ValueError(str(error).split("[Op:")[0].rpartition("}}")[2].strip()) from error


READERS = {
    "image": read_image,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "hdf5": read_hdf5,
    "audio": read_audio,
    "safetensors": read_safetensors,
    "tfrecord": read_tfrecord,
}


def check(path, reader):
    """Return (state, text) of one file."""
    try:
        READERS[reader](path)
        return "sound", ""
    except ImportError:
        return "missing", ""
    except (AttributeError, MemoryError, KeyError, NotImplementedError) as error:
        return "unavailable", type(error).__name__
    except Exception as error:
        text = " ".join(str(error).split())[:300] or type(error).__name__
        # An error number belongs to the system: no permission, a lock, a server that does not answer.
        number = getattr(error, "errno", None)
        limited = any(word in text.lower() for word in _OWN_LIMITS) or "NotImplemented" in type(error).__name__
        if reader == "parquet" and type(error).__name__ == "ArrowInvalid":
            # A schema that Arrow refuses and other readers accept; corrupt pages are an OSError.
            return "refused", text
        return ("unavailable" if number is not None or limited else "broken"), text


def main():
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    # What a library prints must not be taken for an answer.
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        state, text = check(request["path"], request["reader"])
        answers.write(json.dumps({"state": state, "text": text}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
