package roads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// World runs two stacks of the product, each on a software NIC, with a road between them, on
// virtual time. With one processor what it does follows from its seed. One goroutine may use it.
type World struct {
	Server, Client *stack.Stack

	clock  *clocktest.Clock
	stacks clock.Clock // the stacks'
	began  time.Time
	relay  *Relay
	close  []func() error
}

// The addresses of a world.
var (
	serverIP = netip.MustParsePrefix("10.0.0.1/24")
	clientIP = netip.MustParsePrefix("10.0.0.2/24")
)

// NewWorld opens the stacks of a world. No two readings of their clocks are equal, as of a
// machine's.
func NewWorld() (*World, error) {
	w := &World{clock: clocktest.New()}
	w.stacks = clock.New(&tickingClock{Clock: w.clock})
	return w.openStacks()
}

// NewExactWorld opens the stacks of a world whose clocks go on only where somebody waits.
func NewExactWorld() (*World, error) {
	w := &World{clock: clocktest.New()}
	w.stacks = w.clock.Clock()
	return w.openStacks()
}

// openStacks opens the stacks, or closes the world.
func (w *World) openStacks() (_ *World, err error) {
	w.began = w.clock.Now()
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	near, far := w.pair(), w.pair()
	w.relay, err = NewRelay(near[1], far[1], w.Now, func(f func()) func(time.Duration) {
		t := w.clock.Clock().NewStopped(f)
		return func(d time.Duration) { t.Reset(d) }
	})
	if err != nil {
		return w, err
	}
	if w.Server, err = w.open(near[0], 1, serverIP); err != nil {
		return w, err
	}
	if w.Client, err = w.open(far[0], 2, clientIP); err != nil {
		return w, err
	}
	return w, errors.Join(acquaint(w.Server, w.Client), acquaint(w.Client, w.Server))
}

// pair makes a cable between a NIC and the relay.
func (w *World) pair() [2]wire.Wire {
	near, far := wire.Pair()
	w.close = append(w.close, near.Close, far.Close)
	return [2]wire.Wire{near, far}
}

// Now returns the time since the world began.
func (w *World) Now() time.Duration { return w.clock.Now().Sub(w.began) }

// tickingClock goes on by a nanosecond each time that it is read.
type tickingClock struct {
	*clocktest.Clock
	mu   sync.Mutex
	last time.Time
}

// Now implements clock.Source.
func (c *tickingClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.Clock.Now(); now.After(c.last) {
		c.last = now
	} else {
		c.last = c.last.Add(1)
	}
	return c.last
}

// open opens one stack. Its MAC address and what it draws follow from number.
func (w *World) open(end wire.Wire, number byte, ip netip.Prefix) (s *stack.Stack, err error) {
	nic, err := simnic.New(simnic.Config{Seed: uint64(number), Clock: w.clock.Clock()})
	if err == nil {
		w.close = append(w.close, nic.Close)
		err = nic.ConnectWire(end)
	}
	if err != nil {
		return nil, err
	}
	cfg := stack.Config{
		NIC: dv.NIC{
			Model: dv.Model{
				Kernel: kernel.New(nic, kernel.Config{EventQueues: true}).OpenNode,
				Facts:  dv.PortFacts{Name: nic.Config().Name, MAC: nic.MAC(), MTU: nic.MTU()},
			},
			MAC: []byte{2, 0, 0, 0, 0, number}, Rings: dv.Rings{RxQueueSize: 1024,
				TxQueueSize: 1024},
		},
		Driver: func(d *dv.Config) {
			d.Tuning = dv.Tuning{SpareFrames: 1024,
				TxBufferSize: 4 << 20}
		},
		Addresses: []netip.Prefix{ip}, Addressing: stack.AddressOptions{DuplicateDetection: -1,
			NoAnnounce: true},
		Uplink: stack.UplinkOptions{RxMode: stack.RxInterrupt}, Clock: w.stacks,
		Random: clocktest.Random(uint64(number)),
	}
	if !w.await(time.Hour, func() { s, err = stack.Open(context.Background(), cfg) }) {
		return nil, errors.New("the stack does not open")
	}
	if err == nil {
		w.close = append(w.close, func() (err error) {
			w.await(time.Hour, func() { err = s.Close() })
			return err
		})
	}
	return s, err
}

// acquaint adds the hardware address of other to the neighbours of s.
func acquaint(s, other *stack.Stack) error {
	for _, p := range other.Addrs() {
		proto := tcpip.NetworkProtocolNumber(0x86dd)
		if p.Addr().Is4() {
			proto = 0x0800
		}
		if err := s.Netstack().AddStaticNeighbor(1, proto, tcpip.AddrFromSlice(p.Addr().AsSlice()),
			tcpip.LinkAddress(other.HardwareAddr())); err != nil {
			return fmt.Errorf("neighbour %v: %v", p, err)
		}
	}
	return nil
}

// Close closes the stacks and what they are on.
func (w *World) Close() (err error) {
	for i := len(w.close) - 1; i >= 0; i-- {
		err = errors.Join(err, w.close[i]())
	}
	w.close = nil
	return err
}

// patience limits how long f may be in system calls, of the system's time.
const patience = time.Minute

// await runs f, and the time for as long as it takes, at most for limit. It reports whether f has
// returned.
func (w *World) await(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	end, idle := w.Now()+limit, time.Time{}
	for {
		clocktest.Settle()
		select {
		case <-done:
			return true
		default:
		}
		switch {
		case w.Now() >= end:
			return false
		case w.clock.Step():
			idle = time.Time{}
		case idle.IsZero():
			idle = time.Now()
		case time.Since(idle) > patience:
			return false
		default:
			time.Sleep(100 * time.Microsecond) // it is in a system call
		}
	}
}

// Travel makes what follows go by a road. The server's frames go by ways[0].
func (w *World) Travel(r Road, seed uint64) (ways [2]*Way) {
	ways = [2]*Way{NewWay(r, seed, 0), NewWay(r, seed, 1)}
	w.relay.Travel(ways)
	return ways
}

// connect returns the two ends of a connection.
func (w *World) connect() (server, client *stack.TCPConn, err error) {
	at := netip.AddrPortFrom(serverIP.Addr(), 80).String()
	ln, err := w.Server.Listen("tcp4", at)
	if err != nil {
		return nil, nil, err
	}
	defer ln.Close()
	failed := errors.New("no connection")
	w.await(time.Minute, func() {
		c, err := w.Client.Dial("tcp4", at)
		if failed = err; err != nil {
			return
		}
		client = c.(*stack.TCPConn)
		s, err := ln.Accept()
		if failed = err; err == nil {
			server = s.(*stack.TCPConn)
		}
	})
	return server, client, failed
}

// Bulk makes the server send size bytes, and returns how many bytes came in a second: 0 if they
// have not all come within limit.
func (w *World) Bulk(size int, limit time.Duration) (rate float64, err error) {
	server, client, err := w.connect()
	if err != nil {
		return 0, err
	}
	defer func() { w.await(time.Minute, func() { _, _ = server.Close(), client.Close() }) }()
	began := w.Now()
	go func() { _, _ = server.Write(make([]byte, size)) }()
	if !w.await(limit, func() { _, err = io.CopyN(io.Discard, client, int64(size)) }) {
		return 0, nil
	}
	return float64(size) / (w.Now() - began).Seconds(), err
}

// Answers makes the client ask for so many answers of size bytes, one after the other on one
// connection, each written at once, and returns how long each took.
func (w *World) Answers(number, size int) (took []time.Duration, err error) {
	server, client, err := w.connect()
	if err != nil {
		return nil, err
	}
	defer func() { w.await(time.Minute, func() { _, _ = server.Close(), client.Close() }) }()
	go func() {
		for answer := make([]byte, size); ; {
			if _, err := io.ReadFull(server, make([]byte, 100)); err != nil {
				return
			}
			if _, err := server.Write(answer); err != nil {
				return
			}
		}
	}()
	w.await(time.Hour, func() {
		for range number {
			began := w.Now()
			if _, err = client.Write(make([]byte, 100)); err != nil {
				return
			}
			if _, err = io.CopyN(io.Discard, client, int64(size)); err != nil {
				return
			}
			took = append(took, w.Now()-began)
		}
	})
	return took, err
}
