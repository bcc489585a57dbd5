package sim

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// A script sends segments of scriptSize bytes, and repeats what is not answered in time.
const (
	scriptSize  = 1000
	scriptAgain = 500 * time.Millisecond
	scriptTries = 200
)

var errPeerReset = errors.New("the connection was reset")

// script runs a peer that leaves a gap in its data: each segment behind a gap must be acknowledged
// at once (RFC 5681 section 4.2), for that is how a sender learns of a loss.
func (j *job) script() {
	j.serving(func(t *task) error {
		t.sleep(j.plan.Start)
		h := j.w.hosts[j.plan.Client].(*scriptHost)
		for n := range j.plan.Count {
			p := &peer{host: h, to: j.plan.Server, local: uint16(20000 + 100*n + int(j.port)%100),
				remote: j.port, seq: uint32(t.dice.Uint64())}
			began := j.w.clock.now()
			err := j.gap(t, p)
			switch {
			case errors.Is(err, errPeerReset) && (j.w.clock.now() < j.w.calm || j.cutOff(began) ||
				j.w.handshakeLost(began)):
				continue // a segment came twice, or damaged, or the handshake did not end
			case err != nil && j.broken(int(p.local)):
				continue
			}
			if err != nil {
				return fmt.Errorf("connection %d: %w", n, err)
			}
		}
		return nil
	}, j.acceptScript)
}

// acceptScript reads what peers send, one after the other.
func (j *job) acceptScript(ln net.Listener) {
	j.w.spawn(j.name+", server", func(t *task) error {
		for {
			t.calls("accept")
			c, err := ln.Accept()
			if err != nil {
				return nil
			}
			t.calls("read all")
			b, err := io.ReadAll(c)
			c.Close()
			if i := j.request().wrong(b, 0); i >= 0 || err == nil && len(b) != 5*scriptSize {
				return fmt.Errorf("%d bytes came, wrong at %d", len(b), i)
			}
		}
	})
}

// gap is one connection: a segment, three behind a gap, the missing one, the end.
func (j *job) gap(t *task, p *peer) error {
	if err := p.connect(t); err != nil {
		return err
	}
	data := make([]byte, 5*scriptSize)
	j.request().fill(data, 0)
	piece := func(i int) {
		p.segment(i*scriptSize, header.TCPFlagAck|header.TCPFlagPsh,
			data[i*scriptSize:(i+1)*scriptSize])
	}
	if err := p.acknowledged(t, scriptSize, func() { piece(0) }); err != nil {
		return err
	}
	t.sleep(time.Second) // so that no acknowledgement is held for anything before
	p.drain()
	lost, began := j.w.net.losses(), j.w.clock.now()
	piece(2)
	piece(3)
	piece(4)
	got := p.duplicates(t, scriptSize, j.atOnce())
	// where a completion was lost or wrong the next frames of the queue are, however much later
	late := j.w.plan.has(LostCompletion, WrongCounter)
	if got < 3 && j.w.net.losses() == lost && began > j.w.calm && !late {
		return fmt.Errorf("3 segments behind a gap were answered by %d duplicate ACKs", got)
	}
	if err := p.acknowledged(t, len(data), func() { j.repeat(piece) }); err != nil {
		return err
	}
	return p.finish(t, len(data))
}

// repeat sends all segments.
func (j *job) repeat(piece func(int)) {
	for i := range 5 {
		piece(i)
	}
}

// atOnce is how long an answer takes that nothing holds back.
func (j *job) atOnce() time.Duration {
	n := j.w.plan.Net
	h := j.w.plan.Hosts[j.plan.Server]
	d := 2*(n.Delay+n.Jitter+n.Quantum) + 500*time.Microsecond +
		time.Duration(h.Device.Tuning.EventMicroseconds)*time.Microsecond
	if h.Rings { // one process's rings may have it, and another is to get it
		d += h.Late
	}
	// The first answer after that waits for the neighbour's.
	if j.w.plan.has(LinkDown, HeldWithoutLink, Flapping) {
		d += 2 * (n.Delay + n.Jitter + n.Quantum)
	}
	if h.Netdev.Room > 0 { // what it has no room for, behind other connections' frames, is retried
		d += 4*h.Netdev.Drain + time.Millisecond
	}
	return d + h.Netdev.Lag
}

// connect makes the connection.
func (p *peer) connect(t *task) error {
	for range scriptTries {
		t.calls("connect")
		p.segment(-1, header.TCPFlagSyn, nil)
		for s := p.next(t, scriptAgain); s != nil; s = p.next(t, scriptAgain) {
			if s.Flags()&header.TCPFlagRst != 0 {
				return errPeerReset
			}
			if s.Flags() == header.TCPFlagSyn|header.TCPFlagAck && s.AckNumber() == p.seq {
				p.ack = s.SequenceNumber() + 1
				p.segment(0, header.TCPFlagAck, nil)
				return nil
			}
		}
	}
	return errors.New("nobody answered the SYN")
}

// acknowledged has send send again until all is acknowledged up to offset.
func (p *peer) acknowledged(t *task, offset int, send func()) error {
	for range scriptTries {
		t.calls(fmt.Sprintf("wait for the ACK of %d", offset))
		send()
		for s := p.next(t, scriptAgain); s != nil; s = p.next(t, scriptAgain) {
			if s.Flags()&header.TCPFlagRst != 0 {
				return errPeerReset
			}
			if s.Flags()&header.TCPFlagSyn != 0 { // the last of the handshake was lost
				p.segment(0, header.TCPFlagAck, nil)
			}
			if s.Flags()&header.TCPFlagFin != 0 {
				p.ack = s.SequenceNumber() + 1
			}
			if int32(s.AckNumber()-p.seq-uint32(offset)) >= 0 {
				return nil
			}
		}
	}
	return fmt.Errorf("%d bytes were never acknowledged", offset)
}

// duplicates counts the ACKs of offset that come within d.
func (p *peer) duplicates(t *task, offset int, d time.Duration) (n int) {
	t.calls("count duplicate ACKs")
	end := t.w.clock.now() + d
	for s := p.next(t, d); s != nil; s = p.next(t, max(0, end-t.w.clock.now())) {
		if s.AckNumber() == p.seq+uint32(offset) && s.Flags() == header.TCPFlagAck {
			n++
		}
	}
	return n
}

// drain forgets what came.
func (p *peer) drain() {
	for len(p.host.segments) > 0 {
		<-p.host.segments
	}
}

// finish ends both directions.
func (p *peer) finish(t *task, offset int) error {
	if err := p.acknowledged(t, offset+1, func() {
		p.segment(offset, header.TCPFlagAck|header.TCPFlagFin, nil)
	}); err != nil {
		return err
	}
	p.segment(offset+1, header.TCPFlagAck, nil)
	// whatever the other end waits for
	p.segment(offset+1, header.TCPFlagAck|header.TCPFlagRst, nil)
	return nil
}
