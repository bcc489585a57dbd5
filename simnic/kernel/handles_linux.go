package kernel

import "golang.org/x/sys/unix"

// uobject holds the object of a handle (struct ib_uobject).
type uobject struct {
	handle uint32
	kind   uint16 // uverbs.ObjectPD and so on
	impl   any    // *pd, *mr, *cq, *qp, *wq, *indTable, *flow, *counterSet
	user   uint64 // the client's own handle, which events carry

	users   int // objects that use this one; destroying it is EBUSY while there are any
	uses    []*uobject
	release func() error // frees the hardware objects
}

// findObject looks up a handle for use. T is the type of the object.
func findObject[T any](n *node, kind uint16, handle uint32) (*uobject, T, unix.Errno) {
	var none T
	o, errno := n.lookupHandle(kind, handle)
	if errno == 0 {
		errno = n.checkAlive()
	}
	if errno != 0 {
		if n.linux.isRelease(Linux54) && errno != unix.EIO {
			errno = unix.EINVAL // commands of that release ignored the reason
		}
		return nil, none, errno
	}
	return o, o.impl.(T), 0
}

// lookupHandle finds a handle: ENOENT if the handle is free, EINVAL if it is that of an object of
// another kind (rdma_lookup_get_uobject in drivers/infiniband/core/rdma_core.c).
func (n *node) lookupHandle(kind uint16, handle uint32) (*uobject, unix.Errno) {
	if uint64(handle) >= uint64(len(n.handles)) || n.handles[handle] == nil {
		return nil, unix.ENOENT
	}
	o := n.handles[handle]
	if o.kind != kind {
		return nil, unix.EINVAL
	}
	return o, 0
}

// addObject gives o the lowest free handle and counts o as a user of the objects it uses.
func (n *node) addObject(o *uobject) {
	for n.lowest < len(n.handles) && n.handles[n.lowest] != nil {
		n.lowest++
	}
	if n.lowest == len(n.handles) {
		n.handles = append(n.handles, nil)
	}
	o.handle = uint32(n.lowest)
	n.handles[n.lowest] = o
	for _, u := range o.uses {
		u.users++
	}
}

// destroyObject destroys an object at the client's request.
func (n *node) destroyObject(kind uint16, handle uint32) (*uobject, unix.Errno) {
	o, errno := n.lookupHandle(kind, handle)
	if errno != 0 {
		return nil, errno
	}
	if o.users > 0 {
		return nil, unix.EBUSY
	}
	if err := o.release(); err != nil {
		return nil, errnoOf(err)
	}
	n.forgetObject(o)
	return o, 0
}

func (n *node) forgetObject(o *uobject) {
	n.handles[o.handle] = nil
	n.lowest = min(n.lowest, int(o.handle))
	for _, u := range o.uses {
		u.users--
	}
}

// destroyAll destroys all objects, in each pass those without users.
func (n *node) destroyAll() {
	for progress := true; progress; {
		progress = false
		for _, o := range n.handles {
			if o == nil || o.users > 0 {
				continue
			}
			if err := o.release(); err != nil {
				n.nic.Config().Logger.Error("simnic: destroy object of a closed file",
					"kind", o.kind, "error", err)
			}
			n.forgetObject(o)
			progress = true
		}
	}
}
