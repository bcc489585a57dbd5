package kernel

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

const (
	ioctlHdrLen  = 24 // struct ib_uverbs_ioctl_hdr
	ioctlAttrLen = 16 // struct ib_uverbs_attr
)

// attrKind says how an attribute is passed.
type attrKind uint8

const (
	attrIn     attrKind = iota // bytes, in the attribute up to 8, else at an address
	attrOut                    // an address to write to
	attrHandle                 // a handle
	attrNew                    // filled in with the new object's handle or descriptor
	attrEnum                   // bytes, as many as the kind that the attribute names has
)

// attrSpec describes one attribute of a method (struct uverbs_attr_spec). Lengths are bytes; max 0
// allows any length.
type attrSpec struct {
	id        uint16
	kind      attrKind
	min, max  int
	mandatory bool
	object    uint16 // attrHandle: kind of object
	sizes     []int  // attrEnum: bytes, by kind
}

// method describes one method of the node (struct uverbs_method_def).
type method struct {
	attrs []attrSpec
	uhw   bool // the driver has attributes of its own
	run   func(*call) unix.Errno
}

// uhwAttrs lists those of methods with driver data.
var uhwAttrs = []attrSpec{{id: uverbs.AttrUHWIn, kind: attrIn},
	{id: uverbs.AttrUHWOut, kind: attrOut}}

// attrGetContextFDs names UVERBS_ATTR_GET_CONTEXT_FD_ARR: an array of descriptors
// that raise privileges, known since about linux 6.15.
const attrGetContextFDs = 2

// Attributes of UVERBS_METHOD_INFO_HANDLES (enum uverbs_attrs_info_handles_cmd_attr_ids).
const (
	methodInfoHandles   = 1
	attrInfoObject      = 0
	attrInfoTotal       = 1
	attrInfoHandles     = 2
	attrQueryContextOut = 0x1000 // MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX
)

// methodKey holds the number of an object and that of its method.
type methodKey struct{ object, method uint16 }

// methodTable holds all methods of a release.
func methodTable(r Release) map[methodKey]*method {
	const device = uverbs.ObjectDevice
	t := map[methodKey]*method{
		{device, uverbs.MethodInvokeWrite}: {attrs: []attrSpec{
			{id: uverbs.AttrCoreIn, kind: attrIn, min: 4},
			{id: uverbs.AttrCoreOut, kind: attrOut},
			{id: uverbs.AttrWriteCmd, kind: attrIn, min: 8, max: 8, mandatory: true},
		}, uhw: true, run: invokeWrite},
		{device, methodInfoHandles}: {attrs: []attrSpec{
			{id: attrInfoObject, kind: attrIn, min: 8, max: 8, mandatory: true},
			{id: attrInfoTotal, kind: attrOut, min: 4, max: 4},
			{id: attrInfoHandles, kind: attrOut, min: 4},
		}, run: infoHandles},
		{device, uverbs.MethodQueryPort}: {attrs: []attrSpec{
			{id: uverbs.AttrQueryPortNum, kind: attrIn, min: 8, max: 8, mandatory: true},
			{id: uverbs.AttrQueryPortResp, kind: attrOut,
				min: uverbs.SizeOf(uverbs.QueryPortRespEx{}), mandatory: true},
		}, run: queryPortNative},
	}
	countersMethods(t)
	rawFlowMethods(t, r)
	if r != Linux54 {
		contextMethods(t, r)
	}
	return t
}

// contextMethods lists those of 5.6 and later.
func contextMethods(t map[methodKey]*method, r Release) {
	core := []attrSpec{
		{id: uverbs.AttrNumCompVectors, kind: attrOut, min: 4, max: 4},
		{id: uverbs.AttrCoreSupport, kind: attrOut, min: 8, max: 8},
	}
	query := append(core[:2:2], attrSpec{id: attrQueryContextOut, kind: attrOut,
		min: uverbs.SizeOf(uverbs.Mlx5AllocUcontextResp{}), mandatory: true})
	if r == Linux72 {
		core = append(core, attrSpec{id: attrGetContextFDs, kind: attrIn, min: 4})
	}
	t[methodKey{uverbs.ObjectDevice, uverbs.MethodGetContext}] = &method{attrs: core,
		uhw: true, run: getContextNative}
	t[methodKey{uverbs.ObjectDevice, uverbs.MethodQueryContext}] = &method{attrs: query,
		run: queryContext}
	t[methodKey{uverbs.ObjectAsyncEvent, uverbs.MethodAsyncEventAlloc}] = &method{
		attrs: []attrSpec{{id: uverbs.AttrAsyncEventFD, kind: attrNew, mandatory: true}},
		run:   allocAsyncEvents}
}

// runIoctl runs one command (ib_uverbs_ioctl, ib_uverbs_cmd_verbs in
// drivers/infiniband/core/uverbs_ioctl.c).
func (n *node) runIoctl(buf []byte) unix.Errno {
	var hdr uverbs.IoctlHdr
	if len(buf) < ioctlHdrLen {
		return unix.EFAULT
	}
	uverbs.GetStruct(buf, &hdr)
	if uint64(hdr.Length) > n.linux.page ||
		int(hdr.Length) != ioctlHdrLen+int(hdr.NumAttrs)*ioctlAttrLen {
		return unix.EINVAL
	}
	if hdr.Reserved1 != 0 || hdr.Reserved2 != 0 {
		return unix.EPROTONOSUPPORT
	}
	if hdr.DriverID != n.linux.cfg.DriverID {
		return unix.EINVAL
	}
	m, known := n.linux.methods[methodKey{hdr.ObjectID, hdr.MethodID}]
	if !known {
		return unix.EPROTONOSUPPORT
	}
	if int(hdr.Length) > len(buf) {
		return unix.EFAULT
	}
	c := &call{node: n, buf: buf, attrs: make([]uverbs.IoctlAttr, hdr.NumAttrs),
		index: map[uint16]int{}}
	return c.runMethod(m)
}

// runMethod checks the attributes in the order they come, and runs the method.
func (c *call) runMethod(m *method) unix.Errno {
	for i := range c.attrs {
		uverbs.GetStruct(c.buf[ioctlHdrLen+i*ioctlAttrLen:], &c.attrs[i])
	}
	for i := range c.attrs {
		if errno := c.acceptAttr(m, i); errno != 0 {
			return errno
		}
	}
	for _, s := range m.attrs {
		if _, ok := c.index[s.id]; s.mandatory && !ok {
			return unix.EINVAL
		}
	}
	if m.uhw {
		c.uhw.in, c.uhw.out = c.inputAttr(uverbs.AttrUHWIn), c.outputAttr(uverbs.AttrUHWOut)
	}
	errno := m.run(c)
	if errno == 0 {
		c.markWritten(c.uhw.out)
	}
	return errno
}

// attrSpecOf finds the method's description of an attribute.
func (m *method) attrSpecOf(id uint16) *attrSpec {
	for i := range m.attrs {
		if m.attrs[i].id == id {
			return &m.attrs[i]
		}
	}
	for i := range uhwAttrs {
		if m.uhw && uhwAttrs[i].id == id {
			return &uhwAttrs[i]
		}
	}
	return nil
}

// acceptAttr checks attribute i (uverbs_set_attr, uverbs_process_attr).
func (c *call) acceptAttr(m *method, i int) unix.Errno {
	a := &c.attrs[i]
	s := m.attrSpecOf(a.AttrID)
	if s == nil {
		if a.Flags&uverbs.AttrMandatory != 0 {
			return unix.EPROTONOSUPPORT
		}
		return 0
	}
	if _, twice := c.index[a.AttrID]; twice {
		return unix.EINVAL
	}
	if a.AttrData != 0 && s.kind != attrEnum {
		return unix.EINVAL
	}
	if errno := c.fitsSpec(s, a); errno != 0 {
		return errno
	}
	c.index[a.AttrID] = i
	return 0
}

func (c *call) fitsSpec(s *attrSpec, a *uverbs.IoctlAttr) unix.Errno {
	switch s.kind {
	case attrIn, attrOut:
		if int(a.Len) < s.min || s.max != 0 && int(a.Len) > s.max {
			return unix.EINVAL
		}
	case attrEnum: // kind in the low byte of what the header calls attr_data
		kind := int(a.AttrData & 0xff)
		if kind >= len(s.sizes) {
			return unix.EOPNOTSUPP
		}
		if a.AttrData>>8 != 0 || int(a.Len) != s.sizes[kind] {
			return unix.EINVAL
		}
	case attrHandle:
		if a.Len != 0 || a.Data > 1<<32-1 {
			return unix.EINVAL
		}
		_, errno := c.node.lookupHandle(s.object, uint32(a.Data))
		return errno
	case attrNew:
		if a.Len != 0 {
			return unix.EINVAL
		}
		return c.node.checkContext()
	}
	return 0
}

// infoHandles lists the handles of one kind of object.
func infoHandles(c *call) unix.Errno {
	list := c.outputAttr(attrInfoHandles)
	if !list.given || list.n%4 != 0 {
		return unix.EINVAL
	}
	object := c.inputAttr(attrInfoObject)
	var handles []byte
	var total uint32
	for _, o := range c.node.handles {
		if o != nil && uint64(o.kind) == object.addr && len(handles)+4 <= list.n {
			handles = append(handles, host32(o.handle)...)
			total++
		}
	}
	if errno := list.putAll(handles); errno != 0 {
		return errno
	}
	c.markWritten(list)
	return c.answerStruct(c.outputAttr(attrInfoTotal), host32(total))
}

// statusErrno maps a firmware status to an error number, as mlx5_core does (cmd_status_to_err in
// linux drivers/net/ethernet/mellanox/mlx5/core/cmd.c).
var statusErrno = map[simnic.Status]unix.Errno{
	simnic.StatusBadParam:   unix.EINVAL,
	simnic.StatusBadRes:     unix.EINVAL,
	simnic.StatusBadState:   unix.EINVAL,
	simnic.StatusResBusy:    unix.EBUSY,
	simnic.StatusLimit:      unix.ENOMEM,
	simnic.StatusNoResource: unix.EAGAIN,
}

// errnoOf returns the error number for an error of the core.
func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, simnic.ErrFlowConflict):
		return unix.EEXIST
	case errors.Is(err, simnic.ErrFlowFull):
		return unix.ENOSPC
	}
	if errno, ok := statusErrno[simnic.StatusOf(err)]; ok {
		return errno
	}
	return unix.EIO
}
