package dnsd

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/miekg/dns"
)

// ServeTCP answers queries on connections of ln until Shutdown, and then returns nil; any other end is returned as an
// error. It closes ln. Above 512 connections new ones are closed at once.
func (s *Server) ServeTCP(ln net.Listener) error {
	if !s.enter(ln) {
		ln.Close()
		return fmt.Errorf("serve DNS over TCP on %v: %w", ln.Addr(), ErrClosed)
	}
	defer s.leave(ln)
	slots := make(chan struct{}, maxTCPConns)
	for {
		conn, err := ln.Accept()
		if err != nil {
			if s.isClosing() {
				return nil
			}
			return fmt.Errorf("serve DNS over TCP on %v: %w", ln.Addr(), err)
		}
		select {
		case slots <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		if !s.enter(conn) {
			conn.Close()
			continue
		}
		go func() {
			defer func() { s.leave(conn); <-slots }()
			s.serveConn(conn)
		}()
	}
}

// serveConn answers the queries of one connection in order, until it errs, idles for 30 s or the server shuts down.
func (s *Server) serveConn(conn net.Conn) {
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
		answer := s.answerTCP(query[:n])
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
func (s *Server) allowTime(conn net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return ErrClosed
	}
	return conn.SetDeadline(time.Now().Add(tcpIdle))
}

// answerTCP returns the answer with its length before it, ready to be written at once.
func (s *Server) answerTCP(query []byte) []byte {
	var q, r dns.Msg
	switch s.answerTo(query, &q, &r) {
	case drop:
		s.counters.dropped.Add(1)
		return nil
	case forward:
		select {
		case s.forwards <- struct{}{}:
			s.forward(&q, &r, "tcp")
			<-s.forwards
		default:
			r.Rcode = dns.RcodeServerFailure
		}
	}
	answer, err := pack(&r, query, nil, dns.MaxMsgSize)
	if err != nil {
		s.counters.dropped.Add(1)
		return nil
	}
	s.counters.sent(answer)
	return append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(answer)), uint16(len(answer))), answer...)
}
