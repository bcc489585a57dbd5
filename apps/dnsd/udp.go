package dnsd

import (
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/miekg/dns"
)

// maxQuery gives the longest query read over UDP; longer ones are cut and get a format error.
const maxQuery = 4096

// addrPortConn lists the methods of conns that need no allocation for an address: net.UDPConn and
// ours.
type addrPortConn interface {
	ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error)
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
}

// asker holds the source of a query, in the form that its conn uses.
type asker struct {
	addrPort netip.AddrPort
	addr     net.Addr
}

// udpConn reads and writes either kind of conn.
type udpConn struct {
	net.PacketConn
	fast addrPortConn // nil when the conn has only net.Addr
}

func (c *udpConn) readDatagram(b []byte) (int, asker, error) {
	var from asker
	var n int
	var err error
	if c.fast != nil {
		n, from.addrPort, err = c.fast.ReadFromUDPAddrPort(b)
	} else {
		n, from.addr, err = c.ReadFrom(b)
	}
	return n, from, err
}

func (c *udpConn) writeDatagram(b []byte, to asker) error {
	var err error
	if c.fast != nil {
		_, err = c.fast.WriteToUDPAddrPort(b, to.addrPort)
	} else {
		_, err = c.WriteTo(b, to.addr)
	}
	return err
}

// udpWorker describes one goroutine that reads a conn, answers from the zones at once, and passes
// queries to be forwarded to goroutines of their own.
type udpWorker struct {
	s        *Server
	conn     *udpConn
	forwards *sync.WaitGroup
	cache    cache
	in       [maxQuery]byte
	out      []byte // udpSize bytes for the answer
	key      keyBuffer
	tally    tally
}

// ServeUDP answers queries of pc until Shutdown, and then returns nil; any other end is returned as
// an error. It closes pc.
func (s *Server) ServeUDP(pc net.PacketConn) error {
	if !s.registerConn(pc) {
		pc.Close()
		return fmt.Errorf("serve DNS over UDP on %v: %w", pc.LocalAddr(), ErrClosed)
	}
	defer s.closeConn(pc)
	conn := &udpConn{PacketConn: pc}
	conn.fast, _ = pc.(addrPortConn)
	var workers, forwards sync.WaitGroup
	if p, ok := pc.(packetConn); ok && conn.fast != nil {
		err := p.ServePackets(newPacketWorkers(s, conn, &forwards).answerPackets)
		forwards.Wait()
		if !s.isClosing() {
			return fmt.Errorf("serve DNS over UDP on %v: %w", pc.LocalAddr(), err)
		}
		return nil
	}
	errs := make(chan error, s.cfg.UDPWorkers)
	for range s.cfg.UDPWorkers {
		w := &udpWorker{s: s, conn: conn, forwards: &forwards, out: make([]byte, udpSize)}
		workers.Go(func() {
			errs <- w.serveQueries()
			s.interruptRead(pc) // when one worker ends, all end
		})
	}
	workers.Wait()
	forwards.Wait()
	if err := <-errs; !s.isClosing() {
		return fmt.Errorf("serve DNS over UDP on %v: %w", pc.LocalAddr(), err)
	}
	return nil
}

func (w *udpWorker) serveQueries() error {
	if b, ok := w.conn.PacketConn.(batchConn); ok {
		return w.runBatches(b)
	}
	for {
		n, from, err := w.conn.readDatagram(w.in[:])
		if err != nil {
			return err
		}
		w.s.counters.udp.Add(1)
		answer := w.answerQuery(w.in[:n], from)
		w.s.counters.addTally(&w.tally)
		if answer != nil {
			w.sendAnswer(answer, from)
		}
	}
}

func (w *udpWorker) sendAnswer(answer []byte, to asker) {
	w.s.counters.countSent(answer)
	if err := w.conn.writeDatagram(answer, to); err != nil {
		w.s.counters.writeErrors.Add(1)
	}
}

// answerQuery returns the message to send now, in w.out or its own memory; nil when there is none.
func (w *udpWorker) answerQuery(query []byte, from asker) []byte {
	if w.s.limiter.limits() {
		if ok, slip := w.s.limiter.allowsAnswer(from); !ok {
			w.s.counters.limited.Add(1)
			if !slip || len(query) < headerLen {
				return nil
			}
			w.s.counters.slipped.Add(1)
			return truncated(query, w.out)
		}
	}
	key, question := keyOf(query, &w.key)
	if out := w.cache.answerTo(key, query, question, w.out[:0]); out != nil {
		w.tally.cached++
		return out
	}
	var q, r dns.Msg
	v := w.s.answerTo(query, &q, &r)
	switch v {
	case drop:
		w.s.counters.dropped.Add(1)
		return nil
	case forward:
		if w.forwardQuery(query, &q, &r, from) {
			return nil
		}
		r.Rcode = dns.RcodeServerFailure
	}
	out, err := packResponse(&r, query, w.out, sizeFor(&q))
	if err != nil {
		w.s.counters.dropped.Add(1)
		return nil
	}
	if v == known && key != nil {
		w.cache.putAnswer(key, out)
	}
	return out
}

// forwardQuery lets the resolvers answer the query later; false when too many are in progress.
func (w *udpWorker) forwardQuery(query []byte, q, r *dns.Msg, from asker) bool {
	wire, size, answer := append([]byte(nil), query...), sizeFor(q), r.Copy()
	w.forwards.Add(1)
	ok := w.s.forwardQuery(q, r, "udp", from.addressOnly(), func(a *dns.Msg) {
		defer w.forwards.Done()
		fillFromAnswer(answer, a)
		if out, err := packResponse(answer, wire, nil, size); err == nil {
			w.sendAnswer(out, from)
		}
	})
	if !ok {
		w.forwards.Done()
	}
	return ok
}
