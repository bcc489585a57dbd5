package dnsd

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/miekg/dns"
)

// ServeTCP answers queries on connections of ln until Shutdown, and then returns nil; any other end
// is returned as an error. It closes ln. All listeners together have 512 connections; one more
// replaces the one that has been idle longest.
func (s *Server) ServeTCP(ln net.Listener) error {
	if !s.registerConn(ln) {
		ln.Close()
		return fmt.Errorf("serve DNS over TCP on %v: %w", ln.Addr(), ErrClosed)
	}
	defer s.closeConn(ln)
	for {
		nc, err := ln.Accept()
		if err != nil {
			if s.isClosing() {
				return nil
			}
			return fmt.Errorf("serve DNS over TCP on %v: %w", ln.Addr(), err)
		}
		conn := &tcpConn{Conn: nc}
		if !s.registerConn(conn) {
			nc.Close()
			continue
		}
		if !s.tcp.admitConn(conn, &s.counters.tcpEvicted) {
			s.closeConn(conn)
			continue
		}
		go func() {
			defer func() { s.tcp.dropConn(conn); s.closeConn(conn) }()
			s.serveConn(conn)
		}()
	}
}

// serveConn answers the queries of one connection in order, until it fails, the next query takes
// more than 30 s, or 2 s when more than half of the connections are in use, or the server shuts
// down.
func (s *Server) serveConn(conn *tcpConn) {
	in := bufio.NewReaderSize(conn, 512)
	var query []byte
	for {
		if err := s.allowTime(conn); err != nil {
			return
		}
		var length [2]byte
		if _, err := io.ReadFull(in, length[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(length[:]))
		if cap(query) < n {
			query = make([]byte, n)
		}
		if _, err := io.ReadFull(in, query[:n]); err != nil {
			return
		}
		s.counters.tcp.Add(1)
		s.tcp.markBusy(conn)
		answer := s.answerTCP(query[:n], asker{addr: conn.RemoteAddr()}.addressOnly())
		if answer == nil {
			return
		}
		if _, err := conn.Write(answer); err != nil {
			s.counters.writeErrors.Add(1)
			return
		}
	}
}

// allowTime sets the deadline of the next query, unless Shutdown has set one for good.
func (s *Server) allowTime(conn *tcpConn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return ErrClosed
	}
	return s.tcp.setQueryDeadline(conn)
}

// answerTCP returns the answer after its length, ready to be written at once.
func (s *Server) answerTCP(query []byte, client netip.Addr) []byte {
	var q, r dns.Msg
	switch s.answerTo(query, &q, &r) {
	case drop:
		s.counters.dropped.Add(1)
		return nil
	case forward:
		answers := make(chan *dns.Msg, 1)
		if !s.forwardQuery(&q, &r, "tcp", client, func(a *dns.Msg) { answers <- a }) {
			answers <- nil
		}
		fillFromAnswer(&r, <-answers)
	}
	answer, err := packResponse(&r, query, nil, dns.MaxMsgSize)
	if err != nil {
		s.counters.dropped.Add(1)
		return nil
	}
	s.counters.countSent(answer)
	return append(
		binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(answer)), uint16(len(answer))),
		answer...)
}
