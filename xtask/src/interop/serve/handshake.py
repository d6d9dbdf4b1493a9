# libnbd drives a handshake option by option, and then an export. The first argument is the URI of a server with the
# exports "gold" (64 MiB) and "rest" (read-only, 192 MiB).
import errno
import sys

import nbd

uri = sys.argv[1]


def opened():
    h = nbd.NBD()
    h.set_opt_mode(True)
    h.connect_uri(uri)
    return h


def listed(h):
    names = []
    h.opt_list(lambda name, description: names.append(name))
    assert sorted(names) == ["gold", "rest"], names


def refused(call, *codes):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum in codes, error
    else:
        raise AssertionError("it was not refused")


# Options in any order, as often as wanted; those that fail change nothing.
h = opened()
assert h.get_protocol() == "newstyle-fixed" and h.get_structured_replies_negotiated()
for _ in range(2):
    listed(h)
    h.set_export_name("absent")
    refused(h.opt_info, errno.ENOENT)
    refused(h.opt_go, errno.ENOENT)
    h.set_export_name("rest")
    h.opt_info()
    assert (h.get_size(), h.is_read_only()) == (192 << 20, True)
    contexts = []
    h.clear_meta_contexts()
    h.opt_list_meta_context(lambda name: contexts.append(name))
    assert contexts == ["base:allocation"], contexts
    contexts = []
    h.add_meta_context("base:")
    h.opt_list_meta_context(lambda name: contexts.append(name))
    assert contexts == ["base:allocation"], contexts
    h.clear_meta_contexts()
    h.add_meta_context("other:context")
    contexts = []
    h.opt_list_meta_context(lambda name: contexts.append(name))
    assert contexts == [], contexts
    h.clear_meta_contexts()
listed(h)

# The export is the one of GO, with its contexts.
h.add_meta_context("base:allocation")
h.set_export_name("gold")
h.opt_go()
assert (h.get_size(), h.is_read_only(), h.can_meta_context("base:allocation")) == (64 << 20, False, True)
h.pwrite(b"\x07" * 65536, 1 << 20, nbd.CMD_FLAG_FUA)
assert h.pread(65536, 1 << 20) == b"\x07" * 65536
extents = []
h.block_status(4 << 20, 0, lambda context, offset, entries, error: extents.extend(entries))
assert extents[:4] == [1 << 20, 3, 65536, 0], extents
h.set_strict_mode(0)
refused(lambda: h.pread(512, 64 << 20), errno.EINVAL)
refused(lambda: h.pwrite(b"0" * 512, 64 << 20), errno.ENOSPC, errno.EINVAL)
h.shutdown()

# A client may ask and go.
h = opened()
listed(h)
h.opt_abort()

# A read-only export refuses changes, and reads on.
h = nbd.NBD()
h.set_strict_mode(0)
h.set_export_name("rest")
h.connect_uri(uri.replace("nbd+unix:///", "nbd+unix:///rest"))
refused(lambda: h.pwrite(b"0" * 512, 0), errno.EPERM)
refused(lambda: h.trim(4096, 0), errno.EPERM)
refused(lambda: h.zero(4096, 0), errno.EPERM)
assert h.pread(512, 0) == bytes(512)
h.shutdown()
