package iperf3d

import (
	"encoding/binary"
	"net"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Greeting of a UDP stream, 4 bytes in the byte order of the client's processor: only its length is
// checked.
const greetingSize = 4

// greetingReply says what the server answers: "6789".
var greetingReply = []byte{0x36, 0x37, 0x38, 0x39}

// Headers of datagrams: seconds, microseconds and packet number, 32 or 64 bits, big-endian.
const (
	udpHeader32 = 12
	udpHeader64 = 16
)

// udpPort shares one net.PacketConn among the streams of a test. Datagrams go to the stream of
// their sender.
type udpPort struct {
	conn net.PacketConn

	mu      sync.Mutex
	streams map[string]*udpFlow // by remote address
	accept  func(*udpFlow)      // a test that wants streams; nil: none
}

// udpFlow holds the datagrams of one remote address.
type udpFlow struct {
	port *udpPort
	addr net.Addr
	in   chan []byte // to the stream; full: the datagram is lost, as in a socket's buffer
	once sync.Once
	done chan struct{}
}

// udpBacklog counts the datagrams that a stream may queue.
const udpBacklog = 4096

// serveDatagrams reads datagrams until the socket is closed.
func (u *udpPort) serveDatagrams() error {
	buf := make([]byte, maxDatagram+1)
	for {
		n, from, err := u.conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		u.routeDatagram(buf[:n], from)
	}
}

// routeDatagram passes a datagram to its flow; a greeting from a new address makes one.
func (u *udpPort) routeDatagram(b []byte, from net.Addr) {
	u.mu.Lock()
	f := u.streams[from.String()]
	accept := u.accept
	if f == nil && accept != nil && len(b) == greetingSize {
		f = &udpFlow{port: u, addr: from, in: make(chan []byte, udpBacklog),
			done: make(chan struct{})}
		u.streams[from.String()] = f
		u.mu.Unlock()
		accept(f)
		u.conn.WriteTo(greetingReply, from)
		return
	}
	u.mu.Unlock()
	if f == nil || len(b) < udpHeader32 {
		if f != nil { // a repeated greeting: our answer was lost
			u.conn.WriteTo(greetingReply, from)
		}
		return
	}
	select {
	case f.in <- append([]byte(nil), b...):
	default:
	}
}

// setAccept sets the function that gets new flows; nil refuses them.
func (u *udpPort) setAccept(accept func(*udpFlow)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.accept = accept
}

// Close ends the flow. It may be called again.
func (f *udpFlow) Close() {
	f.once.Do(func() {
		close(f.done)
		f.port.mu.Lock()
		delete(f.port.streams, f.addr.String())
		f.port.mu.Unlock()
	})
}

// udpStream makes a stream of a flow.
func udpStream(f *udpFlow, p *params, c clock.Clock) *stream {
	s := &stream{close: f.Close}
	s.run = func(s *stream, stop <-chan struct{}) {
		if s.sends {
			sendUDP(s, f, p, c, stop)
		} else {
			receiveUDP(s, f, p, c)
		}
	}
	return s
}

// sendUDP sends numbered datagrams at the requested rate until told to stop.
func sendUDP(s *stream, f *udpFlow, p *params, c clock.Clock, stop <-chan struct{}) {
	b := make([]byte, p.Len)
	pace := newPacer(p.Bandwidth, c)
	for pace.waitUntilDue(s.bytes.Load(), stop) {
		n := s.packets.Add(1)
		now := c.Now()
		binary.BigEndian.PutUint32(b[0:], uint32(now.Unix()))
		binary.BigEndian.PutUint32(b[4:], uint32(now.Nanosecond()/1000))
		if p.Counters64 {
			binary.BigEndian.PutUint64(b[8:], uint64(n))
		} else {
			binary.BigEndian.PutUint32(b[8:], uint32(n))
		}
		if _, err := f.port.conn.WriteTo(b, f.addr); err != nil {
			return
		}
		s.bytes.Add(int64(len(b)))
	}
}

// receiveUDP counts datagrams, gaps and jitter until the flow is closed.
func receiveUDP(s *stream, f *udpFlow, p *params, c clock.Clock) {
	var transit time.Duration
	for {
		var b []byte
		select {
		case b = <-f.in:
		case <-f.done:
			return
		}
		n, ok := packetNumber(b, p.Counters64)
		if !ok {
			continue
		}
		s.bytes.Add(int64(len(b)))
		s.accountNumber(n)
		sent := time.Unix(int64(binary.BigEndian.Uint32(b)),
			int64(binary.BigEndian.Uint32(b[4:]))*1000)
		t := c.Since(sent)
		if transit != 0 {
			// RFC 1889 section 6.3.1
			s.jitter.Add((int64((t - transit).Abs()) - s.jitter.Load()) / 16)
		}
		transit = t
	}
}

func packetNumber(b []byte, wide bool) (int64, bool) {
	if wide {
		if len(b) < udpHeader64 {
			return 0, false
		}
		return int64(binary.BigEndian.Uint64(b[8:])), true
	}
	return int64(binary.BigEndian.Uint32(b[8:])), true
}

// accountNumber records a datagram's number: a gap is loss until its datagrams arrive late.
func (s *stream) accountNumber(n int64) {
	last := s.packets.Load()
	if n > last {
		s.errors.Add(n - last - 1)
		s.packets.Store(n)
		return
	}
	s.late.Add(1)
	if s.errors.Load() > 0 {
		s.errors.Add(-1)
	}
}
