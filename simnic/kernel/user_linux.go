package kernel

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
	"golang.org/x/sys/unix"
)

// userIn describes a block of input bytes of the client: up to 8 of them are in the attribute
// itself. The zero userIn is an absent block.
type userIn struct {
	given  bool
	n      int
	addr   uint64
	inline [8]byte
}

// copyIn copies n bytes at off. The caller keeps off+n within u.n.
func (u *userIn) copyIn(off, n int) ([]byte, unix.Errno) {
	if u.n > len(u.inline) {
		return u.readFar(off, n)
	}
	b := make([]byte, n)
	copy(b, u.inline[off:])
	return b, 0
}

// readFar reads a block that is at an address whatever its length.
func (u *userIn) readFar(off, n int) ([]byte, unix.Errno) {
	b := make([]byte, n)
	if mmio.ReadUser(u.addr+uint64(off), b) != nil {
		return nil, unix.EFAULT
	}
	return b, 0
}

// zeroFrom reports whether all bytes from off on are zero.
func (u *userIn) zeroFrom(off int) bool {
	if off >= u.n {
		return true
	}
	b, errno := u.copyIn(off, u.n-off)
	if errno != 0 {
		return false
	}
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

// copyStruct fills the uAPI struct that v points to with the bytes given, and zeroes for the rest.
func (u *userIn) copyStruct(v any) unix.Errno {
	b, errno := u.copyIn(0, min(u.n, uverbs.SizeOf(v)))
	if errno != 0 {
		return errno
	}
	uverbs.GetStruct(b, v)
	return 0
}

// userOut describes the client's room for a reply.
type userOut struct {
	given bool
	index int // of the attribute
	n     int
	addr  uint64
}

// putAll writes all of b and ignores the stated room, as drivers do (ib_copy_to_udata).
func (u *userOut) putAll(b []byte) unix.Errno {
	if len(b) > 0 && mmio.WriteUser(u.addr, b) != nil {
		return unix.EFAULT
	}
	return 0
}

// putUpTo writes as much of the uAPI struct v as there is room for.
func (u *userOut) putUpTo(v any) unix.Errno {
	b := make([]byte, uverbs.SizeOf(v))
	uverbs.PutStruct(b, v)
	return u.putAll(b[:min(len(b), u.n)])
}

// call describes one command in progress.
type call struct {
	node  *node
	buf   []byte             // argument of ioctl, modified in place
	attrs []uverbs.IoctlAttr // copies: the client may change its memory meanwhile
	index map[uint16]int     // attributes present, by id

	core, uhw struct {
		in  userIn
		out userOut
	}
}

// inputAttr returns the input attribute with this id.
func (c *call) inputAttr(id uint16) userIn {
	i, ok := c.index[id]
	if !ok {
		return userIn{}
	}
	a := &c.attrs[i]
	u := userIn{given: true, n: int(a.Len), addr: a.Data}
	binary.NativeEndian.PutUint64(u.inline[:], a.Data)
	return u
}

// enumAttr returns the kind that an attribute of attrEnum names.
func (c *call) enumAttr(id uint16) uint8 {
	i, ok := c.index[id]
	if !ok {
		return 0
	}
	return uint8(c.attrs[i].AttrData)
}

// outputAttr returns the output attribute with this id.
func (c *call) outputAttr(id uint16) userOut {
	i, ok := c.index[id]
	if !ok {
		return userOut{}
	}
	return userOut{given: true, index: i, n: int(c.attrs[i].Len), addr: c.attrs[i].Data}
}

// markWritten tells the client that an output has been filled.
func (c *call) markWritten(u userOut) {
	if !u.given {
		return
	}
	flags := c.buf[ioctlHdrLen+u.index*ioctlAttrLen+4:]
	binary.NativeEndian.PutUint16(flags, c.attrs[u.index].Flags|uverbs.AttrValidOutput)
}

// returnHandle writes a new handle or descriptor into an attribute.
func (c *call) returnHandle(id uint16, v uint64) {
	binary.NativeEndian.PutUint64(c.buf[ioctlHdrLen+c.index[id]*ioctlAttrLen+8:], v)
}

// answerStruct writes the uAPI struct v (or bytes) to an output attribute: as much as there is room
// for, and zeroes after it.
func (c *call) answerStruct(u userOut, v any) unix.Errno {
	b, ok := v.([]byte)
	if !ok {
		b = make([]byte, uverbs.SizeOf(v))
		uverbs.PutStruct(b, v)
	}
	if len(b) < u.n {
		b = append(b, make([]byte, u.n-len(b))...)
	}
	if errno := u.putAll(b[:u.n]); errno != 0 {
		return errno
	}
	c.markWritten(u)
	return 0
}

// readRequest fills the command struct that v points to. Bytes of the client after it must be zero:
// else EOPNOTSUPP.
func (c *call) readRequest(v any) unix.Errno {
	if errno := c.core.in.copyStruct(v); errno != 0 {
		return errno
	}
	if !c.core.in.zeroFrom(uverbs.SizeOf(v)) {
		return unix.EOPNOTSUPP
	}
	return 0
}

// writeReply writes the reply of a write command.
func (c *call) writeReply(v any) unix.Errno { return c.answerStruct(c.core.out, v) }

// responseLength returns for how many bytes of a reply v the client has room.
func (c *call) responseLength(v any) uint32 {
	return uint32(min(c.core.out.n, uverbs.SizeOf(v)))
}

// reader walks through a command struct that is followed by an array.
type reader struct {
	in  *userIn
	off int
}

// readBytes reads n bytes: ENOSPC when there are fewer.
func (r *reader) readBytes(n int) ([]byte, unix.Errno) {
	if r.off+n > r.in.n {
		return nil, unix.ENOSPC
	}
	b, errno := r.in.copyIn(r.off, n)
	r.off += n
	return b, errno
}

// readStruct reads the struct.
func (r *reader) readStruct(v any) unix.Errno {
	b, errno := r.readBytes(uverbs.SizeOf(v))
	if errno == 0 {
		uverbs.GetStruct(b, v)
	}
	return errno
}

// refuseTrailing refuses nonzero bytes after the array.
func (r *reader) refuseTrailing() unix.Errno {
	if !r.in.zeroFrom(r.off) {
		return unix.EOPNOTSUPP
	}
	return 0
}
