package card

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// Sizes of what an ioctl buffer consists of, and the longest input that stands in its attribute.
const (
	headerLen    = 24
	attributeLen = 16
	inPlace      = 8
)

// call is one command to a device as it passes by.
type call struct {
	command uint32 // its number; uverbs.CmdGetContext has two forms
	attrs   map[uint16]uverbs.IoctlAttr
}

// parseCall takes an ioctl buffer apart; false if it is of a kind that is of no interest.
func parseCall(buf []byte) (call, bool) {
	var h uverbs.IoctlHdr
	uverbs.GetStruct(buf, &h)
	if h.ObjectID != uverbs.ObjectDevice || len(buf) < headerLen+attributeLen*int(h.NumAttrs) {
		return call{}, false
	}
	c := call{attrs: map[uint16]uverbs.IoctlAttr{}}
	for i := range int(h.NumAttrs) {
		var a uverbs.IoctlAttr
		uverbs.GetStruct(buf[headerLen+attributeLen*i:], &a)
		c.attrs[a.AttrID] = a
	}
	switch h.MethodID {
	case uverbs.MethodInvokeWrite:
		c.command = uint32(c.attrs[uverbs.AttrWriteCmd].Data)
	case uverbs.MethodGetContext:
		c.command = uverbs.CmdGetContext
	default:
		return call{}, false
	}
	return c, true
}

// readAttr reads the struct that an attribute holds or points to; v keeps its value where it cannot
// be read.
func (c call) readAttr(id uint16, v any) {
	a, ok := c.attrs[id]
	if !ok {
		return
	}
	answer := id == uverbs.AttrCoreOut || id == uverbs.AttrUHWOut
	if a.Len <= inPlace && !answer {
		uverbs.GetStruct(binary.NativeEndian.AppendUint64(nil, a.Data), v)
		return
	}
	if b, err := readMemory(a.Data, int(a.Len)); err == nil {
		uverbs.GetStruct(b, v)
	}
}
