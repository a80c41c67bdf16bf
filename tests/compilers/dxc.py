"""Compiles HLSL that naga wrote with DXC, Microsoft's compiler for Direct3D 12, on all cores.

    python3 dxc.py LIBRARY PASSED FILE.hlsl...

LIBRARY is libdxcompiler for Linux. PASSED is a folder with an empty file for each text that
passed before, named by a hash of the library, the arguments and the text: those are
skipped. Any error or warning fails. First it is shown that both are seen.
"""

import concurrent.futures
import ctypes
import hashlib
import os
import sys
import uuid
from ctypes import byref, c_char_p, c_int32, c_size_t, c_uint32, c_void_p, c_wchar_p

ARGUMENTS = [
    *("-E", "main", "-T", "cs_6_0"),
    *("-HV", "2018"),  # the language that naga writes and wgpu asks for
    "-Wno-parentheses-equality",  # naga writes `if ((a == b))`
]
# Only Windows has the library that signs; what is signed is validated here all the same.
UNSIGNED = (
    "warning: DXIL.dll not found.  Resulting DXIL will not be signed for use in release environments."
)
UTF8 = 65001

# Virtual functions by their place in the interfaces of dxcapi.h; IUnknown has three and,
# as built for Linux, a destructor, which takes two places.
RELEASE = 2
COMPILE = 5  # IDxcCompiler3
GET_STATUS, GET_RESULT, GET_ERRORS = 5, 6, 7  # IDxcResult
GET_POINTER, GET_SIZE = 5, 6  # IDxcBlob
CLASS_COMPILER = "73e22d93-e6ce-47f3-b5bf-f0664f39c1b0"
COMPILER3 = "228b4687-5a6a-4730-900c-9702b2203f54"
RESULT = "58346cda-dde7-4497-9461-6f87af5e0659"


class Buffer(ctypes.Structure):
    _fields_ = [("pointer", c_char_p), ("size", c_size_t), ("encoding", c_uint32)]


def guid(text):
    return (ctypes.c_byte * 16).from_buffer_copy(uuid.UUID(text).bytes_le)


def call(instance, place, result, *arguments):
    """Calls a virtual function of a COM object; `arguments` are pairs of type and value."""
    table = ctypes.cast(instance, ctypes.POINTER(ctypes.POINTER(c_void_p)))[0]
    types = [kind for kind, _ in arguments]
    function = ctypes.CFUNCTYPE(result, c_void_p, *types)(table[place])
    return function(instance, *[value for _, value in arguments])


def expect_ok(code, what):
    if code != 0:
        raise RuntimeError(f"{what}: {code & 0xFFFFFFFF:#x}")


def get(instance, place, kind):
    """What a function returns through its only argument."""
    value = kind()
    expect_ok(call(instance, place, c_int32, (c_void_p, byref(value))), f"function {place}")
    return value


def take_bytes(blob):
    """The contents of a blob, which is released."""
    if not blob:
        return b""
    pointer = call(blob, GET_POINTER, c_void_p)
    contents = ctypes.string_at(pointer, call(blob, GET_SIZE, c_size_t))
    call(blob, RELEASE, c_uint32)
    return contents


def start(library):
    """Makes the compiler of this process."""
    global compiler
    compiler = c_void_p()
    create = ctypes.CDLL(library).DxcCreateInstance
    expect_ok(create(guid(CLASS_COMPILER), guid(COMPILER3), byref(compiler)), "DxcCreateInstance")


def compile_text(text):
    """What the compiler says of a text; nothing if it passes."""
    source = Buffer(text, len(text), UTF8)
    arguments = (c_wchar_p * len(ARGUMENTS))(*ARGUMENTS)
    result = c_void_p()
    code = call(
        compiler, COMPILE, c_int32,
        (c_void_p, byref(source)),
        (c_void_p, arguments), (c_uint32, len(ARGUMENTS)),
        (c_void_p, None),
        (c_void_p, guid(RESULT)), (c_void_p, byref(result)),
    )  # fmt: skip
    expect_ok(code, "Compile")
    status = get(result, GET_STATUS, c_int32).value
    errors = take_bytes(get(result, GET_ERRORS, c_void_p)).decode().rstrip("\0")
    compiled = take_bytes(get(result, GET_RESULT, c_void_p))
    call(result, RELEASE, c_uint32)
    said = "\n".join(line for line in errors.splitlines() if line != UNSIGNED).strip()
    if not said and (status != 0 or not compiled.startswith(b"DXBC")):
        return f"status {status & 0xFFFFFFFF:#x}, {len(compiled)} bytes and no message"
    return said


def show_that_it_rejects(pool):
    main = "[numthreads(1, 1, 1)] void main() {{ {} }}"
    texts = {
        "an error": main.format("undeclared = 1;"),
        "no entry point": "void other() {}",
        "a warning": main.format("uint unused; unused == 1u;"),
    }
    said = pool.map(compile_text, (text.encode() for text in texts.values()))
    for what, said in zip(texts, said):
        if not said:
            sys.exit(f"FAILED: DXC says nothing of {what}")
    accepted = list(pool.map(compile_text, [main.format("").encode()]))
    if accepted != [""]:
        sys.exit(f"FAILED: DXC refuses an empty function: {accepted[0]}")


def main(library, passed, files):
    with open(library, "rb") as file:
        tool = hashlib.sha256(file.read() + "\0".join(ARGUMENTS).encode()).digest()
    os.makedirs(passed, exist_ok=True)
    texts = {}  # by the path of their mark
    for path in files:
        with open(path, "rb") as file:
            text = file.read()
        mark = os.path.join(passed, hashlib.sha256(tool + text).hexdigest())
        texts.setdefault(mark, (path, text))
    new = {mark: found for mark, found in texts.items() if not os.path.exists(mark)}
    failed = 0
    cores = len(os.sched_getaffinity(0))
    with concurrent.futures.ProcessPoolExecutor(cores, initializer=start, initargs=(library,)) as pool:
        show_that_it_rejects(pool)
        results = pool.map(compile_text, (text for _, text in new.values()))
        for (mark, (path, _)), said in zip(new.items(), results):
            if said:
                failed += 1
                print(f"FAILED: {path}: {said}", file=sys.stderr)
            else:
                open(mark, "w").close()
    print(f"DXC: {len(texts)} texts, {len(new)} of them new, {failed} failed")
    return failed == 0 and len(texts) > 0


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1], sys.argv[2], sys.argv[3:]) else 1)
