package packet

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestDownAndUp takes the interface down under an open port, and up again.
func TestDownAndUp(t *testing.T) {
	w := newWorld(t)
	p := w.open(t, Config{})
	raw := w.rawSocket(t, 0)
	before := p.Stats().LinkChanges
	w.setLink(t, netlink.LinkSetDown)
	awaitLink(t, p, false)
	frame := TxFrame{Bufs: [][]byte{eth.Ethernet(peerMAC, ourMAC, 0x88b5, eth.Payload(100))}}
	send(t, p.Tx(0), frame, frame)
	if s := p.Stats().Tx[0]; s.Dropped != 2 || s.Frames != 0 {
		t.Errorf("sent on an interface that is down: %+v", s)
	}
	if n := p.Rx(0).Receive(make([]Frame, 1)); n != 0 || p.Err() != nil {
		t.Errorf("%d frames, error %v", n, p.Err())
	}
	w.setLink(t, netlink.LinkSetUp)
	awaitLink(t, p, true)
	must(t, unix.Send(raw, eth.Ethernet(ourMAC, peerMAC, 0x88b5, eth.Payload(100)), 0))
	receive(t, p.Rx(0), 1)
	send(t, p.Tx(0), frame)
	if got := next(t, raw); !bytes.Equal(got, frame.Bufs[0]) {
		t.Errorf("% x came", got)
	}
	if n := p.Stats().LinkChanges - before; n != 2 {
		t.Errorf("the link changed %d times", n)
	}
}

// TestInterfaceDeleted removes the interface under a port that waits.
func TestInterfaceDeleted(t *testing.T) {
	w := newWorld(t)
	p := w.open(t, Config{Queues: 2})
	waited := make(chan error, 2)
	for i := range 2 {
		go func() { waited <- waitLong(p.Rx(i)) }()
	}
	w.setLink(t, netlink.LinkDel)
	select {
	case <-p.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("nobody noticed")
	}
	for range 2 {
		if err := <-waited; !errors.Is(err, ErrGone) {
			t.Errorf("Wait: %v", err)
		}
	}
	want := "the interface is gone: netdev eth0 was removed, or moved to another network " +
		"namespace: no such device"
	if err := p.Err(); err == nil || err.Error() != want || p.LinkUp() {
		t.Errorf("%v, link up %v", err, p.LinkUp())
	}
	if err := p.Tx(0).Post(&TxFrame{Bufs: [][]byte{make([]byte, 60)}}); !errors.Is(err, ErrClosed) {
		t.Errorf("Post: %v", err)
	}
}

// waitLong receives until Wait fails.
func waitLong(q Receiver) error {
	var batch [8]Frame
	for {
		if q.Receive(batch[:]) > 0 {
			continue
		}
		if err := q.Wait(); err != nil {
			return err
		}
	}
}

// TestCloseUnderTraffic closes a port in the middle of both directions, several times at once.
func TestCloseUnderTraffic(t *testing.T) {
	w := newWorld(t)
	raw := w.rawSocket(t, 0)
	for range 5 {
		p := w.open(t, Config{Queues: 2})
		ended := make(chan error)
		for i := range 2 {
			go func() { ended <- waitLong(p.Rx(i)) }()
			go func() {
				frame := TxFrame{Bufs: [][]byte{eth.Ethernet(peerMAC, ourMAC, 0x88b5,
					eth.Payload(100))}}
				q := p.Tx(i)
				for {
					q.Lock()
					err := q.Post(&frame)
					q.Flush()
					q.Unlock()
					if err != nil {
						ended <- err
						return
					}
				}
			}()
		}
		for range 100 {
			must(t, unix.Send(raw, eth.Ethernet(ourMAC, peerMAC, 0x88b5, eth.Payload(100)), 0))
		}
		closed := make(chan error)
		for range 3 {
			go func() { closed <- p.Close() }()
		}
		for range 3 {
			must(t, <-closed)
		}
		for range 4 {
			if err := <-ended; !errors.Is(err, ErrClosed) {
				t.Errorf("a user of the port ended with %v", err)
			}
		}
		must(t, p.Close())
		p.Stats()
		p.Rx(0).Wake()
		if p.Rx(0).Receive(make([]Frame, 1)) != 0 || !errors.Is(p.Rx(0).Wait(), ErrClosed) ||
			!errors.Is(p.Err(), ErrClosed) {
			t.Errorf("a closed port: %v", p.Err())
		}
	}
}
