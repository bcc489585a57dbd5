package uverbs

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

const (
	hdrLen  = 24 // sizeof(struct ib_uverbs_ioctl_hdr)
	attrLen = 16 // sizeof(struct ib_uverbs_attr)

	// inlineMax gives the longest input in the attribute itself.
	inlineMax = 8

	// maxAttrs gives the maximum number of attributes of a write command.
	maxAttrs = 5
)

// direction says how an attribute is passed.
type direction uint8

const (
	dirIn       direction = iota // bytes to the kernel: inline up to inlineMax, else by pointer
	dirOut                       // bytes from the kernel, always by pointer
	dirConstant                  // a number of 8 bytes, inline
	dirHandle                    // handle of an existing object, inline, length 0
	dirNew                       // the kernel writes a new handle or descriptor in place, length 0
)

// attr describes one attribute of a command.
type attr struct {
	id       uint16
	dir      direction
	bytes    []byte         // dirIn: bytes to send. dirOut: destination of the reply
	value    *uint64        // dirConstant, dirHandle: to send. dirNew: for the reply
	embedded *embeddedBytes // dirIn: memory that bytes must point to
}

// embeddedBytes describes a block of bytes that a dirIn attribute refers to by address: the
// address is put at offset at of the attribute's bytes.
type embeddedBytes struct {
	at    int
	bytes []byte
}

// align8 rounds up to a multiple of 8.
func align8(n int) int { return (n + 7) &^ 7 }

// scratchBytes returns how many bytes of the scratch region an attribute takes outside the ioctl
// buffer.
func (a attr) scratchBytes() int {
	switch {
	case a.dir == dirOut, a.dir == dirIn && len(a.bytes) > inlineMax:
		n := align8(len(a.bytes))
		if a.embedded != nil {
			n += align8(len(a.embedded.bytes))
		}
		return n
	}
	return 0
}

// exchangeCmd lays out one command in memory outside the Go heap, runs it, and copies the replies
// out. The used part of mem is cleared first, so outputs that the kernel does not write read as
// zero. Outputs are set only on success.
func exchangeCmd(k Kernel, driver uint32, object, method uint16,
	attrs []attr, mem *mmio.Region) error {
	length := hdrLen + attrLen*len(attrs)
	need := align8(length)
	for _, a := range attrs {
		need += a.scratchBytes()
	}
	if need > mem.Len() {
		big, err := mmio.Alloc(need)
		if err != nil {
			return err
		}
		defer big.Close()
		mem = big
	}
	clear(mem.Slice(0, need))
	buf := mem.Slice(0, length)
	PutStruct(buf, IoctlHdr{Length: uint16(length), ObjectID: object, MethodID: method,
		NumAttrs: uint16(len(attrs)), DriverID: driver})
	at := align8(length)
	for i, a := range attrs {
		PutStruct(buf[hdrLen+attrLen*i:], a.encodeInto(mem, at))
		at += a.scratchBytes()
	}
	if err := k.Ioctl(buf); err != nil {
		return err
	}
	at = align8(length)
	for i, a := range attrs {
		a.collectReply(buf[hdrLen+attrLen*i:], mem, at)
		at += a.scratchBytes()
	}
	return nil
}

// encodeInto places the attribute's bytes at offset at of mem, if they do not fit in the attribute.
func (a attr) encodeInto(mem *mmio.Region, at int) IoctlAttr {
	w := IoctlAttr{AttrID: a.id, Flags: AttrMandatory}
	switch a.dir {
	case dirIn:
		w.Len = uint16(len(a.bytes))
		if len(a.bytes) <= inlineMax {
			var b [inlineMax]byte
			copy(b[:], a.bytes)
			w.Data = binary.NativeEndian.Uint64(b[:])
			break
		}
		w.Data = mem.Addr() + uint64(at)
		copy(mem.Slice(at, len(a.bytes)), a.bytes)
		if a.embedded != nil {
			sideAt := at + align8(len(a.bytes))
			copy(mem.Slice(sideAt, len(a.embedded.bytes)), a.embedded.bytes)
			binary.NativeEndian.PutUint64(mem.Slice(at+a.embedded.at, 8), mem.Addr()+uint64(sideAt))
		}
	case dirOut:
		w.Len = uint16(len(a.bytes))
		w.Data = mem.Addr() + uint64(at)
	case dirConstant:
		w.Len, w.Data = 8, *a.value
	case dirHandle:
		w.Data = *a.value
	}
	return w
}

// collectReply copies the attribute's reply, if it has one.
func (a attr) collectReply(raw []byte, mem *mmio.Region, at int) {
	switch a.dir {
	case dirOut:
		copy(a.bytes, mem.Slice(at, len(a.bytes)))
	case dirNew:
		var w IoctlAttr
		GetStruct(raw, &w)
		*a.value = w.Data
	}
}

// write is one command sent by MethodInvokeWrite: the struct of the older write() transport without
// its header. in, out, uhwIn and uhwOut are uAPI structs (pointers for the replies), or []byte, or
// nil if the command has none.
type write struct {
	op            *op
	noun          string // for messages
	in, out       any
	uhwIn, uhwOut any
	side          *embeddedBytes // memory that uhwIn points to
	uses          []*object      // must not be closed while the command runs
	needs         uint64         // bytes of memory the command pins
}

// ioctlAttrs returns the attributes of w and a function that decodes the replies.
func (w write) ioctlAttrs() ([]attr, func()) {
	number := uint64(w.op.cmd)
	list := make([]attr, 0, maxAttrs)
	var after []func()
	answer := func(id uint16, v any) {
		if v != nil {
			b := make([]byte, SizeOf(v))
			list = append(list, attr{id: id, dir: dirOut, bytes: b})
			after = append(after, func() { GetStruct(b, v) })
		}
	}
	request := func(id uint16, v any, s *embeddedBytes) {
		if v != nil {
			list = append(list, attr{id: id, dir: dirIn, bytes: bytesOf(v), embedded: s})
		}
	}
	request(AttrCoreIn, w.in, nil)
	answer(AttrCoreOut, w.out)
	list = append(list, attr{id: AttrWriteCmd, dir: dirConstant, value: &number})
	request(AttrUHWIn, w.uhwIn, w.side)
	answer(AttrUHWOut, w.uhwOut)
	return list, func() {
		for _, f := range after {
			f()
		}
	}
}

// bytesOf returns the bytes of a uAPI struct, or v itself if it is bytes.
func bytesOf(v any) []byte {
	if b, ok := v.([]byte); ok {
		return b
	}
	b := make([]byte, SizeOf(v))
	PutStruct(b, v)
	return b
}
