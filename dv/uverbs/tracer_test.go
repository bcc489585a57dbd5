package uverbs

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// A trace is the recorded calls to a device node as text, one JSON object per call. Addresses of
// the process and numbers of event descriptors differ from run to run, so they are written as
// names: an address keeps its offset in its page, a descriptor is numbered in order of appearance.
// Event records themselves are not part of a trace.

// tracedCall is one line of a trace.
type tracedCall struct {
	Call  string       `json:"call"`           // "ioctl" or "mmap"
	Name  string       `json:"name,omitempty"` // for readers; not compared
	Errno string       `json:"errno,omitempty"`
	Ioctl *tracedIoctl `json:"ioctl,omitempty"`
	Mmap  *tracedMmap  `json:"mmap,omitempty"`
}

type tracedMmap struct {
	Offset   int64 `json:"offset"`
	Length   int   `json:"length"`
	Writable bool  `json:"writable"`
}

type tracedIoctl struct {
	Object uint16       `json:"object"`
	Method uint16       `json:"method"`
	Driver uint32       `json:"driver"`
	Attrs  []tracedAttr `json:"attrs"`
}

// tracedAttr is one attribute. In has the input: the bytes, or the 8 bytes of a constant or handle.
// Out has the output, and Len the room for it.
type tracedAttr struct {
	ID  uint16 `json:"id"`
	Dir string `json:"dir"` // "in", "out", "constant", "handle", "new"
	In  string `json:"in,omitempty"`
	Out string `json:"out,omitempty"`
	Len uint16 `json:"len,omitempty"`
}

var dirNames = []string{dirIn: "in", dirOut: "out", dirConstant: "constant",
	dirHandle: "handle", dirNew: "new"}

// methodAttrs says how each attribute of a method is passed, which the buffer does not.
var methodAttrs = map[[2]uint16]map[uint16]direction{
	{ObjectDevice, MethodInvokeWrite}: {AttrCoreIn: dirIn, AttrCoreOut: dirOut,
		AttrWriteCmd: dirConstant, AttrUHWIn: dirIn, AttrUHWOut: dirOut},
	{ObjectDevice, MethodGetContext}: {AttrNumCompVectors: dirOut, AttrCoreSupport: dirOut,
		AttrUHWIn: dirIn, AttrUHWOut: dirOut},

	{ObjectAsyncEvent, MethodAsyncEventAlloc}: {AttrAsyncEventFD: dirNew},
	{ObjectCounters, MethodCountersCreate}:    {AttrCountersHandle: dirNew},
	{ObjectCounters, MethodCountersDestroy}:   {AttrCountersHandle: dirHandle},
	{ObjectCounters, MethodCountersRead}: {AttrCountersHandle: dirHandle,
		AttrCountersBuffer: dirOut, AttrCountersFlags: dirIn},
}

// writeAttr is one attribute of a write command.
type writeAttr struct {
	cmd uint32
	id  uint16
}

// addressFields are the offsets of addresses of the process in inputs.
var addressFields = map[writeAttr][]int{
	{CmdRegMR, AttrCoreIn}:       {8, 24},
	{ExCmdCreateCQ, AttrUHWIn}:   {0, 8},
	{ExCmdCreateQP, AttrUHWIn}:   {0, 8, 40}, // of a raw queue pair; the RSS struct has none
	{ExCmdCreateWQ, AttrUHWIn}:   {0, 8},
	{ExCmdCreateFlow, AttrUHWIn}: {8},
}

// fdSent are the offsets of descriptor numbers in inputs.
var fdSent = map[writeAttr]int{{ExCmdCreateCQ, AttrCoreIn}: 16}

// maskAddress replaces an address by its offset in a 4 KiB page, marked so that it differs from no
// address.
func maskAddress(addr uint64) uint64 {
	if addr == 0 {
		return 0
	}
	return addr&0xfff | 0x1000
}

// errNotCommand reports a buffer that is not a command of this package.
var errNotCommand = errors.New("not a command that can be traced")

// parsed is a parsed ioctl buffer.
type parsed struct {
	hdr   IoctlHdr
	cmd   uint32 // of MethodInvokeWrite
	attrs []parsedAttr
}

type parsedAttr struct {
	IoctlAttr
	at  int // offset in the buffer
	dir direction
}

// parse parses an ioctl buffer.
func parse(buf []byte) (p parsed, err error) {
	GetStruct(buf, &p.hdr)
	dirs, ok := methodAttrs[[2]uint16{p.hdr.ObjectID, p.hdr.MethodID}]
	if !ok || len(buf) != hdrLen+attrLen*int(p.hdr.NumAttrs) || int(p.hdr.Length) != len(buf) {
		return p, fmt.Errorf("object %d method %d with %d attributes in %d bytes: %w",
			p.hdr.ObjectID, p.hdr.MethodID, p.hdr.NumAttrs, len(buf), errNotCommand)
	}
	for i := range int(p.hdr.NumAttrs) {
		a := parsedAttr{at: hdrLen + attrLen*i}
		GetStruct(buf[a.at:], &a.IoctlAttr)
		if a.dir, ok = dirs[a.AttrID]; !ok {
			return p, fmt.Errorf("object %d method %d attribute %#x: %w", p.hdr.ObjectID,
				p.hdr.MethodID, a.AttrID, errNotCommand)
		}
		if a.dir == dirConstant {
			p.cmd = uint32(a.Data)
		}
		p.attrs = append(p.attrs, a)
	}
	return p, nil
}

// fdGiven is the offset of a new descriptor's number in the reply in a, if it has one.
func (p parsed) fdGiven(a parsedAttr) (at int, ok bool) {
	if p.hdr.ObjectID != ObjectDevice {
		return 0, p.hdr.ObjectID == ObjectAsyncEvent && a.dir == dirNew
	}
	return 0, p.hdr.MethodID == MethodInvokeWrite && a.AttrID == AttrCoreOut &&
		(p.cmd == CmdCreateCompChannel || p.cmd == CmdGetContext)
}

// sent returns the input bytes of an attribute, nil for outputs.
func (a parsedAttr) sent() ([]byte, error) {
	switch {
	case a.dir == dirIn && a.Len > inlineMax:
		b := make([]byte, a.Len)
		return b, mmio.ReadUser(a.Data, b)
	case a.dir == dirIn:
		return binary.NativeEndian.AppendUint64(nil, a.Data)[:a.Len], nil
	case a.dir == dirConstant, a.dir == dirHandle:
		return binary.NativeEndian.AppendUint64(nil, a.Data), nil
	}
	return nil, nil
}

// neutral removes from b, bytes sent in an attribute of command cmd, the values that differ from
// run to run. name gives descriptors their names.
func neutral(cmd uint32, id uint16, b []byte, name func(fd int32) int32) []byte {
	key := writeAttr{cmd, id}
	if cmd == ExCmdCreateQP && len(b) == SizeOf(Mlx5CreateQPRSSReq{}) {
		return b
	}
	for _, at := range addressFields[key] {
		if at+8 <= len(b) {
			binary.NativeEndian.PutUint64(b[at:], maskAddress(binary.NativeEndian.Uint64(b[at:])))
		}
	}
	if at, ok := fdSent[key]; ok && at+4 <= len(b) {
		fd := int32(binary.NativeEndian.Uint32(b[at:]))
		binary.NativeEndian.PutUint32(b[at:], uint32(name(fd)))
	}
	return b
}

// request renders a request before the call: outputs have only their length.
func (p parsed) request(name func(fd int32) int32) (*tracedIoctl, error) {
	t := &tracedIoctl{Object: p.hdr.ObjectID, Method: p.hdr.MethodID, Driver: p.hdr.DriverID}
	for _, a := range p.attrs {
		b, err := a.sent()
		if err != nil {
			return nil, err
		}
		ta := tracedAttr{ID: a.AttrID, Dir: dirNames[a.dir],
			In: hex.EncodeToString(neutral(p.cmd, a.AttrID, b, name))}
		if a.dir == dirOut {
			ta.Len = a.Len
		}
		t.Attrs = append(t.Attrs, ta)
	}
	return t, nil
}

// name is the name of the command, for readers of a trace.
func (p parsed) name() string {
	for _, o := range []*op{opGetContext, opQueryPort, opAllocPD, opDeallocPD, opRegMR, opDeregMR,
		opCreateChannel, opCreateCQ,
		opModifyCQ, opDestroyCQ, opCreateQP, opModifyQP, opQueryQP, opDestroyQP,
		opCreateWQ, opModifyWQ, opDestroyWQ,
		opCreateIndTable, opDestroyIndTbl, opCreateFlow, opDestroyFlow, opQueryDevice} {
		if p.hdr.ObjectID == ObjectDevice && p.hdr.MethodID == MethodInvokeWrite && p.cmd == o.cmd {
			return o.name
		}
	}
	switch [2]uint16{p.hdr.ObjectID, p.hdr.MethodID} {
	case [2]uint16{ObjectDevice, MethodGetContext}:
		return opGetContext.name
	case [2]uint16{ObjectAsyncEvent, MethodAsyncEventAlloc}:
		return opAsyncEvents.name
	case [2]uint16{ObjectCounters, MethodCountersCreate}:
		return opCreateCounters.name
	case [2]uint16{ObjectCounters, MethodCountersRead}:
		return opReadCounters.name
	case [2]uint16{ObjectCounters, MethodCountersDestroy}:
		return opDestroyCount.name
	}
	return ""
}

// errnoName is the symbolic name of an error of a Kernel, "" for nil.
func errnoName(err error) string {
	var errno unix.Errno
	switch {
	case err == nil:
		return ""
	case !errors.As(err, &errno):
		return "EIO"
	case unix.ErrnoName(errno) != "":
		return unix.ErrnoName(errno)
	}
	return fmt.Sprint(int(errno))
}

// errnoByName is the inverse of errnoName.
func errnoByName(s string) error {
	if s == "" {
		return nil
	}
	for e := unix.Errno(1); e < 1024; e++ {
		if unix.ErrnoName(e) == s || fmt.Sprint(int(e)) == s {
			return e
		}
	}
	return unix.EIO
}
