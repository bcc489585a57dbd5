package dv

import (
	"context"
	"net"
	"sync"
)

// Device is one port of an mlx5 NIC, opened. Its methods may be called from
// any goroutine.
type Device struct {
	config Config
	rx     []*RxQueue
	tx     []*TxQueue
	pool   *Pool
	caps   Caps
	spread spread

	mu   sync.Mutex
	done chan struct{}
	err  error
}

// Open opens the device that cfg names and brings its queues up; frames for
// its MAC arrive from then on. ctx bounds the waiting for a device that is
// being reset, no more. On failure nothing is left behind, and the error is
// one sentence that says what to do.
func Open(ctx context.Context, cfg Config) (*Device, error) {
	return nil, ErrNotSupported
}

// Name is the RDMA device's name.
func (d *Device) Name() string { return d.config.Facts.Name }

// Netdev is the name of the port's Linux interface, "" if it has none here.
func (d *Device) Netdev() string { return d.config.Facts.Netdev }

// MAC is the address whose frames come to us.
func (d *Device) MAC() net.HardwareAddr { return d.config.MAC }

// MTU is the largest IP packet received and sent, in bytes.
func (d *Device) MTU() int { return d.config.MTU }

// NumRx and NumTx are the numbers of queues.
func (d *Device) NumRx() int { return len(d.rx) }
func (d *Device) NumTx() int { return len(d.tx) }

// Rx and Tx return queue i. A queue lives as long as its device.
func (d *Device) Rx(i int) *RxQueue { return d.rx[i] }
func (d *Device) Tx(i int) *TxQueue { return d.tx[i] }

// Pool is the device's frame buffers.
func (d *Device) Pool() *Pool { return d.pool }

// Caps is what the device can do.
func (d *Device) Caps() Caps { return d.caps }

// QueueFor is the receive queue that frames of f come to: choose ports by it
// to keep a connection on one queue.
func (d *Device) QueueFor(f Flow) int { return d.spread.queueOf(d.spread.hash.hash(f)) }

// Stats returns all counters. They are not taken at one instant, and those of
// a busy queue may be a batch old.
func (d *Device) Stats() Stats { return Stats{} }

// LinkUp is the port's state as last told.
func (d *Device) LinkUp() bool { return true }

// Done is closed when the device fails for good or is closed; Err says why.
func (d *Device) Done() <-chan struct{} { return d.done }

// Err is nil while the device works, then ErrClosed or an error that is
// ErrFailed and has the cause in it.
func (d *Device) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// Stop ends reception and sending: every RxQueue.Wait returns ErrClosed, every
// Poll returns 0, every Post ErrClosed. Join the queues' owners then, and
// Close. Stopping again does nothing.
func (d *Device) Stop() {}

// Close stops the device, destroys its kernel objects and returns its memory:
// Packets still held and queues are dead from then on. The owners of the
// receive queues must have stopped (see Stop). Closing again waits for the
// first Close and returns its result.
func (d *Device) Close() error { return nil }
