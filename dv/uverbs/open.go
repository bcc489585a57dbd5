package uverbs

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// Options say how to open a context. The zero value is useful.
type Options struct {
	// TxQPs says how many transmit queue pairs get their own doorbell register, at most 511;
	// further ones share register 0, which is correct but slower. Default 15.
	TxQPs int

	// WriteCombining requests doorbell pages that accept whole work requests (QP.BlueFlameSize). If
	// the machine refuses, or the device does not use it, they are mapped uncached.
	WriteCombining bool

	// DriverID is the kernel driver of the device (enum rdma_driver_id), as RDMA netlink
	// GET_CHARDEV reports it. Default DriverMLX5; any other driver's device refuses with EINVAL.
	DriverID uint32

	// Clock gives the time that Open goes by; the zero value is the system's.
	Clock clock.Clock

	// Environment returns the limits and capabilities of the process, for messages about locked
	// memory. Default ReadEnvironment.
	Environment func() (Environment, error)

	// before a retry if the device is not active yet; default 100 ms
	retryDelay time.Duration
	pageSize   int // default the system's
}

func (o Options) withDefaults() Options {
	if o.TxQPs == 0 {
		o.TxQPs = 15
	}
	if o.DriverID == 0 {
		o.DriverID = DriverMLX5
	}
	if o.Environment == nil {
		o.Environment = ReadEnvironment
	}
	if o.retryDelay == 0 {
		o.retryDelay = 100 * time.Millisecond
	}
	if o.pageSize == 0 {
		o.pageSize = os.Getpagesize()
	}
	return o
}

// scratchLen is enough for every command but the creation of a large indirection table, which takes
// its own.
const scratchLen = 4096

// Open opens a device context on k: GET_CONTEXT, the asynchronous event descriptor, the device's
// capabilities and its doorbell pages. It takes ownership of k: Context.Close closes k, and Open
// closes it before it returns an error.
//
// Open does not check whether the device supports raw packet queues: DeviceCaps.Check does.
func Open(k Kernel, o Options) (*Context, error) {
	o = o.withDefaults()
	scratch, err := mmio.Alloc(scratchLen)
	if err != nil {
		k.Close()
		return nil, err
	}
	c := &Context{driver: o.DriverID, env: o.Environment, clock: o.Clock,
		kernel: k, scratch: scratch, refused: make(chan struct{}, 1),
		channels: map[*CompChannel]struct{}{}}
	if err := c.bringUp(o); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// bringUp runs the commands that open the context.
func (c *Context) bringUp(o Options) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ask := contextRequest(o.TxQPs, o.pageSize)
	a, err := c.getContext(ask)
	if errors.Is(err, unix.EAGAIN) {
		_ = o.Clock.Sleep(context.Background(), o.retryDelay) // which never ends
		a, err = c.getContext(ask)
	}
	if err != nil {
		return err
	}
	if c.async, err = c.openAsync(a); err != nil {
		return err
	}
	if err := c.queryDevice(a); err != nil {
		return err
	}
	return c.mapUARs(o)
}

// contextAnswer holds the reply of GET_CONTEXT.
type contextAnswer struct {
	vectors     uint32
	coreSupport uint64
	asyncFD     int // -1: not part of the reply
	driver      Mlx5AllocUcontextResp
}

const contextNoun = "device context"

// getContext uses the native method and, on kernels before 5.6, the write command. (Newer kernels,
// about 6.15 on, do not execute the write command by ioctl: they read its attribute 2 as an array
// of descriptors.)
func (c *Context) getContext(ask Mlx5AllocUcontextReqV2) (contextAnswer, error) {
	a, err := c.getContextNative(ask)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return c.getContextWrite(ask)
	}
	return a, err
}

func (c *Context) getContextNative(ask Mlx5AllocUcontextReqV2) (contextAnswer, error) {
	a := contextAnswer{asyncFD: -1}
	var vectors, support [8]byte
	answer := make([]byte, SizeOf(a.driver))
	err := c.callLocked(opGetContext, contextNoun, nil, 0, ObjectDevice, MethodGetContext, []attr{
		{id: AttrNumCompVectors, dir: dirOut, bytes: vectors[:4]},
		{id: AttrCoreSupport, dir: dirOut, bytes: support[:]},
		{id: AttrUHWIn, dir: dirIn, bytes: bytesOf(ask)},
		{id: AttrUHWOut, dir: dirOut, bytes: answer},
	})
	GetStruct(vectors[:4], &a.vectors)
	GetStruct(support[:], &a.coreSupport)
	GetStruct(answer, &a.driver)
	return a, err
}

func (c *Context) getContextWrite(ask Mlx5AllocUcontextReqV2) (contextAnswer, error) {
	var a contextAnswer
	var core GetContextResp
	err := c.writeLocked(write{op: opGetContext, noun: contextNoun,
		in: GetContextReq{}, out: &core, uhwIn: ask, uhwOut: &a.driver})
	a.vectors, a.asyncFD = core.NumCompVectors, int(core.AsyncFD)
	return a, err
}

// openAsync creates the asynchronous event descriptor, unless the reply of GET_CONTEXT has one.
// Objects bind to it when they are created, so it comes first.
func (c *Context) openAsync(a contextAnswer) (*AsyncEvents, error) {
	if a.asyncFD >= 0 {
		return newAsyncEvents(c.kernel, a.asyncFD)
	}
	var fd uint64
	err := c.callLocked(opAsyncEvents, "asynchronous event descriptor", nil, 0,
		ObjectAsyncEvent, MethodAsyncEventAlloc,
		[]attr{{id: AttrAsyncEventFD, dir: dirNew, value: &fd}})
	if err != nil {
		return nil, err
	}
	return newAsyncEvents(c.kernel, int(fd))
}

// queryDevice queries the other capabilities.
func (c *Context) queryDevice(a contextAnswer) error {
	var core ExQueryDeviceResp
	var drv Mlx5QueryDeviceResp
	err := c.writeLocked(write{op: opQueryDevice, noun: "device capabilities",
		in: ExQueryDeviceReq{}, out: &core, uhwOut: &drv})
	if err != nil {
		return err
	}
	c.caps = decodeCaps(a, core, drv)
	return nil
}
