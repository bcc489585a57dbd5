package sim

import (
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// frameBooks are the frame buffers of a device, as its pool, its queues and the descriptors that
// the NIC reads have them. While nothing runs each frame has one owner: the pool, a descriptor of
// one receive queue, or a send that is not completed. The link copies what it passes on.
//
// It reads fields of package dv, which has no use for these books itself. Only the scheduler may
// call check.
type frameBooks struct {
	dev   *dv.Device
	free  *[]dv.Frame
	holds *[]atomic.Int32 // by frame; nil if a frame only ever has one holder
	base  uint64          // address of frame 0
	rx    []receiveBooks
	tx    []sendBooks
	owner []owner // by frame
	moves uint64  // sum over positions when the books were right last
}

// owner is who has a frame.
type owner uint16

const (
	nobody owner = iota
	thePool
	receiveQueues // and as many behind it as there are queues
	sendQueues    = receiveQueues + 1<<10
)

// String implements fmt.Stringer.
func (o owner) String() string {
	switch {
	case o == nobody:
		return "nobody"
	case o == thePool:
		return "the pool"
	case o < sendQueues:
		return fmt.Sprintf("receive queue %d", o-receiveQueues)
	}
	return fmt.Sprintf("send queue %d", o-sendQueues)
}

// receiveBooks are the descriptors of a receive queue, each of which has perWQE buffers.
type receiveBooks struct {
	cc, pc *uint32
	slots  *[]dv.Frame
	ring   *[]byte
	size   int      // bytes of a data segment, whose last eight are the address
	perWQE int      // buffers of a descriptor
	holes  *[]uint8 // by descriptor, how many of its first buffers it lacks; nil: none ever
}

// sendBooks are what a send queue has in flight.
type sendBooks struct {
	frames                 reflect.Value // ring of frames
	first, end             *uint32       // free-running counts of it
	stageEnd, stageBegin   *uint32       // of the staging memory
	stageSize, descriptors uint32        // bytes, blocks
	cc, pc                 *uint32
	ring                   *[]byte
	stage                  uint64   // address of the staging memory
	pieces                 []uint32 // by 64 bytes of it: the look that has seen them in use last
	looks                  uint32
}

// field is a field of a struct that v points to.
func field(v reflect.Value, name string) reflect.Value {
	f := v.Elem().FieldByName(name)
	if !f.IsValid() {
		panic(fmt.Sprintf("sim: %v has no field %s any more", v.Type(), name))
	}
	return f
}

// at is where a field is that has type T.
func at[T any](v reflect.Value, name string) *T {
	f := field(v, name)
	return reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Interface().(*T)
}

func newFrameBooks(dev *dv.Device) *frameBooks {
	pool := reflect.ValueOf(dev.Pool())
	b := &frameBooks{dev: dev, free: at[[]dv.Frame](pool, "free"), base: *at[uint64](pool, "base"),
		owner: make([]owner, dev.Pool().Frames())}
	if holds := at[[]atomic.Int32](pool, "shares"); len(*holds) > 0 {
		b.holds = holds
	}
	for i := range dev.NumRx() {
		b.rx = append(b.rx, newReceiveBooks(dev.Rx(i)))
	}
	for i := range dev.NumTx() {
		b.tx = append(b.tx, newSendBooks(dev.Tx(i)))
	}
	return b
}

func newReceiveBooks(q *dv.RxQueue) receiveBooks {
	v := reflect.ValueOf(q)
	b := receiveBooks{cc: at[uint32](v, "cc"), pc: at[uint32](v, "pc"),
		slots: at[[]dv.Frame](v, "slots"), ring: at[[]byte](v, "ring"), perWQE: 1}
	if f := field(v, "format").Elem(); f.Kind() == reflect.Pointer {
		if f.Elem().FieldByName("holes").IsValid() {
			b.holes, b.perWQE = at[[]uint8](f, "holes"), int(*at[uint32](f, "segs"))
		}
	}
	b.size = *at[int](v, "wqe") / b.perWQE
	return b
}

func newSendBooks(q *dv.TxQueue) sendBooks {
	v := reflect.ValueOf(q)
	frames, stage := field(v, "inFlightFrames").Addr(), field(v, "stage").Addr()
	b := sendBooks{frames: field(frames, "ring"), first: at[uint32](frames, "tail"),
		end: at[uint32](frames, "head"), stageBegin: at[uint32](stage, "tail"),
		stageEnd: at[uint32](stage, "head"), stageSize: *at[uint32](stage, "size"),
		cc: at[uint32](v, "cc"), pc: at[uint32](v, "pc"), descriptors: *at[uint32](v, "size"),
		ring: at[[]byte](v, "ring"), stage: *at[uint64](stage, "addr")}
	b.pieces = make([]uint32, b.stageSize/pieceAlign)
	return b
}
