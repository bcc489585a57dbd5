package dv

import (
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// portCounterLife is how old a counter of the port may be: to read one is a command to the
// firmware.
const portCounterLife = 100 * time.Millisecond

// portCounter follows a counter that the kernel keeps of the port, from open on.
type portCounter struct {
	mu    sync.Mutex // guards what follows
	clock clock.Clock
	ask   func() (uint64, error)
	known uint64 // as last asked for
	at    time.Time
	sum   uint64 // since open
}

// open begins to count. Where the counter cannot be read there is nothing to count, for good.
func (p *portCounter) open(c clock.Clock, ask func() (uint64, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock = c
	if n, err := ask(); err == nil {
		p.ask, p.known, p.at = ask, n, p.clock.Now()
	}
}

// value is how much has been counted since open, 0 if that is not known. The firmware's counters
// have 32 bits (struct mlx5_ifc_query_q_counter_out_bits), and wrap.
func (p *portCounter) value() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ask == nil || p.clock.Since(p.at) < portCounterLife {
		return p.sum
	}
	n, err := p.ask()
	if err != nil { // the device is closed
		return p.sum
	}
	more := n - p.known
	if n < p.known {
		more = uint64(uint32(more))
	}
	p.sum += more
	p.known, p.at = n, p.clock.Now()
	return p.sum
}

// last is value as it was told last.
func (p *portCounter) last() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sum
}

// OutOfBuffer is how many frames the NIC has dropped since Open as the receive queue they were for
// had no buffer: the kernel's counter out_of_buffer of the port. It counts for all users of the
// RDMA device, other processes too, and not for the netdev, which has rx_out_of_buffer in ethtool
// -S. It is up to 100 ms old, and 0 where the kernel does not tell. RxStats.Stalls says which of
// our queues it was. A device that is over is not asked again: a command to it may take seconds.
func (d *Device) OutOfBuffer() uint64 {
	if d.Err() != nil {
		return d.outOfBuffer.last()
	}
	return d.outOfBuffer.value()
}
