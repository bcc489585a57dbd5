package stack

import (
	"net"
)

// Message is one datagram of a batch. Its fields are those of Message in golang.org/x/net/ipv4.
type Message struct {
	Buffers [][]byte // in: the bytes, or where to put them
	OOB     []byte   // in: control data, or where to put it
	Addr    net.Addr // the peer, a *net.UDPAddr
	N       int      // out: bytes in Buffers
	NN      int      // out: bytes in OOB
	Flags   int      // out: MSG_TRUNC, MSG_CTRUNC
}

// ReadBatch waits for one datagram and then takes as many as have arrived, at most len(ms), with one
// turn of the socket's lock. It returns how many it filled in. Only Buffers[0] of each is used.
func (c *UDPConn) ReadBatch(ms []Message) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	c.rd.mu.Lock()
	defer c.rd.mu.Unlock()
	r, err := c.receiveLocked(ms[0].buffer(), "recvmmsg")
	if err != nil {
		return 0, c.readError(err)
	}
	c.fill(&ms[0], r)
	for i := 1; i < len(ms); i++ {
		r, terr := c.take(ms[i].buffer())
		if terr != nil {
			return i, nil // an error, if it is one, is the next call's
		}
		c.fill(&ms[i], r)
	}
	return len(ms), nil
}

func (m *Message) buffer() []byte {
	if len(m.Buffers) == 0 {
		return nil
	}
	return m.Buffers[0]
}

// fill completes m. rd.mu is held.
func (c *UDPConn) fill(m *Message, r received) {
	m.N, m.Addr = r.n, c.stack.udpAddr(c.family, r.from)
	m.NN, m.Flags = c.message(r, m.OOB)
}

// WriteBatch sends ms in order. It returns how many were sent, and the error of the first that was
// not, if it is the first of the batch.
func (c *UDPConn) WriteBatch(ms []Message) (int, error) {
	for i := range ms {
		if err := c.writeMessage(&ms[i]); err != nil {
			if i > 0 {
				err = nil
			}
			return i, err
		}
	}
	return len(ms), nil
}

func (c *UDPConn) writeMessage(m *Message) error {
	b := m.buffer()
	if len(m.Buffers) > 1 {
		b = concat(m.Buffers)
	}
	addr, ok := m.Addr.(*net.UDPAddr)
	if !ok && m.Addr != nil {
		_, err := c.WriteTo(b, m.Addr)
		return err
	}
	n, nn, err := c.WriteMsgUDP(b, m.OOB, addr)
	m.N, m.NN = n, nn
	return err
}

func concat(parts [][]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}
